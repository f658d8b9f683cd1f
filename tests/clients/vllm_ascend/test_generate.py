"""vLLM with vllm-ascend on the device, offline: the tokens of transformers on the CPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.clients.launch import tool
from tests.clients.vllm_ascend import models

if not os.environ.get("CLIENT_VLLM_ASCEND"):
    pytest.skip(
        "CLIENT_VLLM_ASCEND does not name a checkout of vllm-ascend", allow_module_level=True
    )

ROOT = Path(__file__).resolve().parents[3]
TOKENS = 8
GRAPHS = {"enforce_eager": False}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Makes each model once."""
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            made[name] = models.make(name, tmp_path_factory.mktemp("models"))
        return made[name]

    return find


def generate(path: Path, program: Path, options: dict, **environment: str) -> list[list[int]]:
    """The checks of dtypes are off: the card's attention takes no float32, which tokens are compared in."""
    said = tool(
        sys.executable,
        program / "vllm_generate.py",
        path,
        json.dumps(options),
        SOFTNPU_STRICT="0",
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **environment,
    )
    return json.loads(next(line for line in reversed(said.splitlines()) if line.startswith("[[")))


@pytest.mark.parametrize("name", models.CONFIGURATIONS)
@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_models(checkpoint, program, name, mode):
    path = checkpoint(name)
    got = generate(path, program, {} if mode == "eager" else GRAPHS)
    assert got == models.expected(path, TOKENS)


CASES = {
    "chunked prefill": {"max_num_batched_tokens": 16, "max_num_seqs": 2},
    "prefix caching": {"enable_prefix_caching": True},
    "ngram speculation": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    },
}  # fmt: skip


CASES["sleep mode"] = {
    "sleep": True,
    "enable_sleep_mode": True,
    "additional_config": {"weight_nz_mode": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_features(checkpoint, program, case):
    path = checkpoint("llama")
    assert generate(path, program, CASES[case]) == models.expected(path, TOKENS)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_two_devices(checkpoint, program, name):
    """Tensor parallel; the experts on both devices."""
    path = checkpoint(name)
    options = {"tensor_parallel_size": 2, "enable_expert_parallel": name == "qwen3_moe"}
    got = generate(path, program, options, SOFTNPU_DEVICES="2")
    assert got == models.expected(path, TOKENS)
