"""The builds of the kernels for each kind of processor: one is chosen as PyTorch chooses, and all of them compute alike."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softnpu import _C
from tests import ROOT

#: builds that this processor can run, by the value of ATEN_CPU_CAPABILITY
_ORDER = ["default", "avx2", "avx512"]
_BEST = torch.backends.cpu.get_cpu_capability().lower().split("_")[0]
HERE = _ORDER[: _ORDER.index(_BEST) + 1] if _BEST in _ORDER else ["default"]

#: files of tests/kernels that take few seconds and pass through most of the vector header
SAMPLE = [
    "test_activation.py",
    "test_attention_decode.py",
    "test_quantize.py",
    "test_rotary.py",
    "test_masked_softmax.py",
]
BUILT = sorted((ROOT / "build").glob("objects-torch*/avx*/kernels/*.o"))


def run(capability: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )


def test_this_process_runs_the_build_that_pytorch_would():
    best = torch.backends.cpu.get_cpu_capability()
    assert _C.cpu_capability() == (
        best.split("_")[0] if best.lower().split("_")[0] in _ORDER else "DEFAULT"
    )


@pytest.mark.parametrize("capability", HERE)
def test_the_environment_chooses(capability):
    done = run(
        capability, "-c", "import torch_npu; from softnpu import _C; print(_C.cpu_capability())"
    )
    assert done.stdout.strip() == capability.upper(), done.stderr


def test_doctor_names_the_build():
    done = run("default", "-m", "softnpu", "doctor", "--json")
    assert "kernels for DEFAULT" in done.stdout, done.stderr


@pytest.mark.parametrize("capability", HERE)
def test_a_sample_of_the_kernels_suite(capability):
    files = [str(ROOT / "tests" / "kernels" / name) for name in SAMPLE]
    done = run(capability, "-m", "pytest", "-q", "-x", *files)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("capability", HERE)
def test_the_kernels_suite(capability):
    ignored = f"--ignore={Path(__file__)}"
    done = run(capability, "-m", "pytest", "-q", ignored, str(ROOT / "tests" / "kernels"))
    assert done.returncode == 0, done.stdout[-3000:]


def symbols(path: Path, which: str = "--defined-only") -> dict[str, str]:
    lines = subprocess.run(["nm", which, str(path)], capture_output=True, text=True, check=True)
    return {line.split()[-1]: line.split()[-2] for line in lines.stdout.splitlines()}


def startup(path: Path) -> str:
    """The instructions that run when the library is loaded."""
    command = ["objdump", "-d", "--section=.text.startup", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(
    not BUILT or shutil.which("objdump") is None, reason="no objects of a build beside the sources"
)
def test_builds_for_newer_processors_run_nothing_when_they_are_loaded():
    """No vector instructions before one is chosen, and no function that the linker could take for the plain build: what that
    one calls, it has itself."""
    objects = list(BUILT[0].parents[2].glob("default/**/*.o"))
    plain = {name for path in objects for name in symbols(path)}
    called = {name for path in objects for name in symbols(path, "--undefined-only")}
    assert plain and called
    for path in BUILT:
        assert not re.search(r"%[xyz]mm", startup(path)), path
        shared = {name for name, kind in symbols(path).items() if kind in "WVu"}
        assert not (shared - plain) & called, path
