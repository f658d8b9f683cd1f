"""`vllm serve` on the device: completions and chat over HTTP, in bfloat16 and with every check of the operators."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.clients.vllm_ascend import models

if not os.environ.get("CLIENT_VLLM_ASCEND"):
    pytest.skip(
        "CLIENT_VLLM_ASCEND does not name a checkout of vllm-ascend", allow_module_level=True
    )

PATIENCE = 1800  # seconds until the server must be there
OPTIONS = (
    "--served-model-name=tiny", "--dtype=bfloat16", "--max-model-len=128", "--max-num-seqs=2",
    "--gpu-memory-utilization=0.02", "--num-gpu-blocks-override=16",
)  # fmt: skip


def ask(port: int, path: str, question: dict | None = None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if question is None else json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read()


@pytest.fixture(scope="module", params=["eager", "graphs"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    path = models.make("llama", folder)
    command = os.path.join(os.path.dirname(sys.executable), "vllm")
    eager = ["--enforce-eager"] if request.param == "eager" else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log.txt"
    command = [command, "serve", str(path), *OPTIONS, *eager, f"--port={port}"]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert process.poll() is None, log.read_text()
            try:
                ask(port, "/health")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(1)
        yield port, path
        process.terminate()
        process.wait(60)


def test_completions(server):
    port, path = server
    question = {
        "model": "tiny", "prompt": "w5 w6 w7 w8 w9", "max_tokens": 3, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    answer = json.loads(ask(port, "/v1/completions", question))
    expected = models.expected(path, 3)[0]  # in float32: the first tokens are no ties
    assert answer["choices"][0]["text"].split() == [f"w{token}" for token in expected]


def test_chat(server):
    port, _ = server
    question = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "w5 w6"}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = json.loads(ask(port, "/v1/chat/completions", question))
    assert len(answer["choices"][0]["message"]["content"].split()) == 4
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": answer["usage"]["prompt_tokens_details"],
    }
