"""MindSpeed's own C++ operators: it compiles them against our headers and calls CANN's functions in libopapi.so.

MINDSPEED_SOURCE names its folder. Each operator is compiled, which takes about a minute.
"""

from __future__ import annotations

import os
import shutil

import pytest

from tests.clients.launch import PROGRAMS, tool

SOURCE = os.environ.get("MINDSPEED_SOURCE", "")

pytestmark = [
    pytest.mark.skipif(not SOURCE, reason="MINDSPEED_SOURCE is not set"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]


@pytest.mark.parametrize("name", ["rotary", "ring_attention_update", "gmm", "moe_token_permute"])
def test_operator(name, tmp_path):
    said = tool(
        "python", PROGRAMS / "mindspeed_ops.py", name,
        PYTHONPATH=os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")]), TORCH_EXTENSIONS_DIR=str(tmp_path),
    )  # fmt: skip
    assert said.splitlines()[-1] == "equal"
