"""csrc/device under ThreadSanitizer, a program without Python and PyTorch, and whether csrc/hccl's still compiles. `make tsan`
runs both, and for longer."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sysconfig

import pytest
from torch.utils import cpp_extension

from tests import ROOT

slow = pytest.mark.slow
needs_gcc = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("setarch") is None or platform.system() != "Linux",
    reason="needs g++ and setarch",
)


@slow
@needs_gcc
def test_the_program_of_hccl_is_up_to_date():
    """The transport and the interpreter are the test's own: they must have what csrc/hccl asks for."""
    includes = [str(ROOT / "csrc"), *cpp_extension.include_paths(), sysconfig.get_path("include")]
    program = ROOT / "tests" / "cpp" / "hccl_threads.cpp"
    command = [
        "g++",
        "-std=c++20",
        "-fsyntax-only",
        "-w",
        "-pthread",
        *(f"-I{i}" for i in includes),
    ]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    defined = set(re.findall(r"^(?:bool|void) ([\w:]+)\(\) \{", program.read_text(), re.MULTILINE))
    header = (ROOT / "csrc" / "hccl" / "interrupt.h").read_text()
    assert set(re.findall(r"^(?:bool|void) (\w+)\(\);", header, re.MULTILINE)) <= defined


@slow
@needs_gcc
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
