"""csrc/device under ThreadSanitizer: a program without Python and PyTorch. `make tsan` runs it for longer, and csrc/hccl."""

from __future__ import annotations

import platform
import shutil
import subprocess

import pytest

from tests import ROOT

slow = pytest.mark.slow


@slow
@pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("setarch") is None or platform.system() != "Linux",
    reason="needs g++ and setarch",
)
def test_no_thread_of_the_device_races(tmp_path):
    program = tmp_path / "device"
    sources = sorted((ROOT / "csrc" / "device").glob("*.cpp"))
    build = subprocess.run(
        ["g++", "-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread", "-I", str(ROOT / "csrc"),
         *map(str, sources), str(ROOT / "tests" / "cpp" / "device_threads.cpp"), "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "cannot find" in build.stderr and "tsan" in build.stderr:
        pytest.skip("g++ has no ThreadSanitizer")
    assert build.returncode == 0, build.stderr
    run = subprocess.run(
        ["setarch", "-R", str(program), "100"],
        capture_output=True, text=True, check=False, env={"TSAN_OPTIONS": "halt_on_error=1"},
    )  # fmt: skip
    assert run.returncode == 0 and run.stdout == "no race\n", run.stdout + run.stderr
