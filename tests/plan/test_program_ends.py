"""Programs that end early, never reach a step, wait, or are no programs at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.cli.test_commands import run
from tests.plan.programs import plan

STREAMS = """
import torch
import torch_npu

x = torch.ones(256, 256, device="npu")
side = torch.npu.Stream()
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    y = x @ x
torch.npu.current_stream().wait_stream(side)
z = y + 1
print(int(z[0, 0].item()))
raise RuntimeError("half way")
"""
LARGE = """
import torch
import torch_npu

half = torch.empty(40 << 30, dtype=torch.uint8, device="npu")
other = torch.empty(40 << 30, dtype=torch.uint8, device="npu")  # does not fit
free, total = torch.npu.mem_get_info()
print(total >> 30, half.fill_(1).shape[0] >> 30)
"""
SLEEP = """
import time
import torch
import torch_npu

x = torch.ones(1024, 1024, device="npu")
print("ready", flush=True)
time.sleep(120)
"""


def test_a_program_that_fails_is_reported_so_far(tmp_path):
    """One run for several things, since each takes seconds: an error, no steps, two streams."""
    found, done = plan(tmp_path, STREAMS, code=1)
    (rank,) = found["jobs"][0]["by_rank"]
    assert "RuntimeError: half way" in done.stderr and rank["error"] == "RuntimeError: half way"
    assert rank["exit_code"] == 1 and not rank["complete"]
    assert "never reached the end of a step" in done.stderr
    assert rank["step"] == {
        "kind": "program", "meaning": "the whole program: no optimizer or profiler stepped", "complete": 0,
    }  # fmt: skip
    kernels = {kernel["name"]: kernel for kernel in rank["kernels"]}
    product, total = kernels["aten::mm"], kernels["aten::add"]
    assert product["stream"] != total["stream"] == 0
    assert product["waits"] and total["start"] >= product["start"] + product["seconds"]


def test_a_program_beyond_the_memory_goes_on(tmp_path):
    """The whole peak is known, and the program sees the chip's size."""
    found, done = plan(tmp_path, LARGE)
    assert done.stdout == "64 40\n" and "does not fit in 64.00 GiB, by 16.00 GiB" in done.stderr
    (rank,) = found["jobs"][0]["by_rank"]
    assert found["fits"] is False and rank["margin_bytes"] == -(16 << 30)
    assert rank["peak_allocated_bytes"] == 80 << 30
    assert {line["line"] for line in rank["lines"]} == {5, 6}


def test_a_program_without_the_device(tmp_path):
    found, done = plan(tmp_path, "print('hello')", code=1)
    assert done.stdout == "hello\n" and "used no NPU" in done.stderr
    assert found["fits"] is None and found["step_seconds"] is None


def test_the_programs_exit_code(tmp_path):
    _, done = plan(tmp_path, "raise SystemExit(7)", code=7)
    assert "used no NPU" in done.stderr


def _interruptible() -> None:
    """A shell's job in the background ignores the signal, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted(tmp_path):
    """Ctrl-C reaches the command and the program; the report comes anyway."""
    (tmp_path / "sleep.py").write_text(SLEEP, "utf-8")
    command = [sys.executable, "-m", "softnpu", "plan", str(tmp_path / "sleep.py")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_interruptible,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "ended with KeyboardInterrupt" in said and "4.00 MiB allocated" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("missing.py",), "there is no file missing.py"),
        (("--ranks", "12", __file__), "12 ranks does not fill servers of 8 devices"),
        (("--ranks", "8", "--rank", "8", __file__), "no rank 8 among 8 ranks"),
        (("--soc", "Ascend1", __file__), "'Ascend1' is not in chips.toml"),
        (("--soc", "Ascend310P3", "--ranks", "8", __file__), "no figure links.node_devices of Ascend310P3"),
        (("--calibration", "none.json", __file__), "there is no calibration none.json"),
        (("--routing", "sideways", __file__), "SOFTNPU_ROUTING"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned(options, words):
    assert words in run("plan", *options, code=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "say what to plan"),
        (("--model", "llama3-70b", "prog.py"), "one of them"),
        (("--rank", "x", "prog.py"), "must be numbers"),
        (("--model", "llama3-70b", "--profile", "d"), "--profile needs a program"),
    ],
)
def test_wrong_usage(options, words):
    assert words in run("plan", *options, code=2)
