"""vLLM with vllm-ascend on the device, offline: the tokens of transformers on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.launch import tool
from tests.clients.vllm_ascend import models, quantized, ties

if not os.environ.get("CLIENT_VLLM_ASCEND"):
    pytest.skip(
        "CLIENT_VLLM_ASCEND does not name a checkout of vllm-ascend", allow_module_level=True
    )

ROOT = Path(__file__).resolve().parents[3]
TOKENS = 8
GRAPHS = {"enforce_eager": False}
#: the card's attention takes no float32, which tokens are compared in: the checks of dtypes are off
UNCHECKED = {"SOFTNPU_STRICT": "0"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Makes each model once."""
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            made[name] = models.make(name, tmp_path_factory.mktemp("models"))
        return made[name]

    return find


def run(path: Path, program: Path, options: dict, **environment: str) -> dict:
    """What the program says: tokens, and how many of each prompt came from a cache."""
    settings = UNCHECKED if options.get("dtype", "float32") == "float32" else {}
    said = tool(
        sys.executable,
        program / "vllm_generate.py",
        path,
        json.dumps(options),
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **settings,
        **environment,
    )
    return last(said)


def last(said: str) -> dict:
    lines = reversed(said.splitlines())
    return json.loads(next(line for line in lines if line.startswith('{"tokens"')))


def generate(path: Path, program: Path, options: dict, **environment: str) -> list[list[int]]:
    return run(path, program, options, **environment)["tokens"]


@pytest.mark.parametrize("name", models.CONFIGURATIONS)
@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_models(checkpoint, program, name, mode):
    path = checkpoint(name)
    got = generate(path, program, {} if mode == "eager" else GRAPHS)
    assert got == models.expected(path, TOKENS)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_bfloat16(checkpoint, program, name, mode):
    """With every check of the operators: each token is float32's best, or tied with it."""
    path = checkpoint(name)
    options = {"dtype": "bfloat16", "enforce_eager": mode == "eager"}
    ties.check(path, models.PROMPTS, generate(path, program, options))


CASES = {
    "chunked prefill": {"max_num_batched_tokens": 16, "max_num_seqs": 2},
    "ngram speculation": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    },
    "sleep mode": {"sleep": True, "enable_sleep_mode": True, "additional_config": {"weight_nz_mode": 0}},
    "sleep mode, graphs": {
        "sleep": True, "enable_sleep_mode": True, "additional_config": {"weight_nz_mode": 0}, **GRAPHS
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_features(checkpoint, program, case):
    path = checkpoint("llama")
    assert generate(path, program, CASES[case]) == models.expected(path, TOKENS)


@pytest.mark.parametrize("mode", ["eager", "graphs"])
@pytest.mark.parametrize("chunk", [256, 48])
def test_prefix_caching(checkpoint, program, mode, chunk):
    """The same prompts twice, in whole or in chunks: the second time their first blocks are in the cache."""
    path = checkpoint("llama")
    options = {
        "prompts": models.LONG, "rounds": 2, "enable_prefix_caching": True, "max_model_len": 256,
        "max_num_batched_tokens": chunk, "max_num_seqs": 2, "enforce_eager": mode == "eager",
    }  # fmt: skip
    said = run(path, program, options)
    assert said["tokens"] == 2 * models.expected(path, TOKENS, models.LONG)
    count = len(models.LONG)
    assert said["cached"][count:] == [128] * count


@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_eagle(checkpoint, program, tmp_path, mode):
    """A drafting model proposes; what is accepted are the tokens of the model itself."""
    path = checkpoint("llama")
    draft = {
        "method": "eagle",
        "model": str(models.eagle(path, tmp_path)),
        "num_speculative_tokens": 2,
    }
    options = {"speculative_config": draft, "enforce_eager": mode == "eager"}
    assert generate(path, program, options) == models.expected(path, TOKENS)


@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_lora(checkpoint, program, tmp_path, mode):
    """The last prompt goes without the adapter that the others have."""
    path = checkpoint("llama")
    adapter = models.adapter(path, tmp_path)
    options = {
        "enable_lora": True, "max_lora_rank": 8, "lora": str(adapter), "enforce_eager": mode == "eager",
    }  # fmt: skip
    got = generate(path, program, options)
    with_adapter = models.expected(path, TOKENS, models.PROMPTS[:-1], adapter)
    assert got == with_adapter + models.expected(path, TOKENS, models.PROMPTS[-1:])


@pytest.mark.parametrize(("name", "bits"), [("llama", 8), ("qwen3_moe", 8), ("qwen3_moe", 4)])
@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_quantized(checkpoint, program, tmp_path, name, bits, mode):
    """W8A8, and W4A8 for the experts: weights of msModelSlim's format against the same rounding in transformers."""
    path, values = quantized.make(checkpoint(name), tmp_path, bits)
    options = {
        "dtype": "bfloat16", "quantization": "ascend", "enforce_eager": mode == "eager",
    }  # fmt: skip
    got = generate(path, program, options)
    ties.check(values, models.PROMPTS, got, quantized.DynamicQuantization)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_two_devices(checkpoint, program, name, mode):
    """Tensor parallel; the experts on both devices."""
    path = checkpoint(name)
    options = {
        "tensor_parallel_size": 2, "enable_expert_parallel": name == "qwen3_moe",
        "enforce_eager": mode == "eager",
    }  # fmt: skip
    got = generate(path, program, options, SOFTNPU_DEVICES="2")
    assert got == models.expected(path, TOKENS)


def test_kv_transfer(checkpoint, program):
    """One instance computes the prompts, another one fetches their KV blocks and decodes."""
    path = checkpoint("llama")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, **UNCHECKED, "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip

    def start(role: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(program / "vllm_transfer.py"), role, str(path), str(port)],
            env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    producer = start("producer")
    try:
        assert producer.stdout is not None
        places = next((line for line in producer.stdout if line.startswith("[{")), None)
        assert places is not None, "the producer ended without an answer"
        said, _ = start("consumer").communicate(places)
    finally:
        producer.communicate()
    answer = last(said)
    assert answer["tokens"] == models.expected(path, TOKENS, models.LONG)
    assert answer["cached"] == [len(prompt) for prompt in models.LONG]
