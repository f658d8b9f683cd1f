"""Who does not profile does not pay for the profiler; PROF_CONFIG_PATH switches it on at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests import PYTHONPATH
from tests.forking import program
from torch_npu.profiler import _dynamic_config

STEPS = """
    import json, sys
    said = {"with torch_npu": [name for name in sys.modules if name.startswith("torch_npu.profiler")]}
    before = set(sys.modules)
    torch_npu.profiler
    said["with the profiler"] = sorted(set(sys.modules) - before)
    print(json.dumps(said))
"""
ANALYSIS = {"_analyse", "_model", "writers", "sqlite3", "csv", "subprocess"}


def test_parts_are_loaded_when_they_are_asked_for(tmp_path):
    said = json.loads(program(tmp_path, STEPS).stdout)
    assert said["with torch_npu"] == []
    loaded = {name.rsplit(".", 1)[-1] for name in said["with the profiler"]}
    assert "profiler_interface" in loaded and not loaded & ANALYSIS


def test_the_environment_variable_is_read_at_import(tmp_path):
    text = "import torch_npu; print(torch_npu.profiler._NonIntrusiveProfile._handle is not None)"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "PROF_CONFIG_PATH": str(tmp_path / "dp")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "True"
    written = (tmp_path / "dp" / _dynamic_config.FILE).read_text("utf-8")
    assert json.loads(written) == _dynamic_config.TEMPLATE
