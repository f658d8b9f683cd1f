"""verl: one step of PPO by its actor, the numbers of the CPU.

It comes as a source and asks for transformers 4: VERL_SOURCE names its folder, VERL_PYTHON an interpreter with its requirements
and softnpu (this one, where it is not set), VERL_PATH further folders of packages.
"""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.clients import launch

SOURCE = os.environ.get("VERL_SOURCE", "")
PYTHON = os.environ.get("VERL_PYTHON", sys.executable)

pytestmark = pytest.mark.skipif(not SOURCE, reason="VERL_SOURCE is not set")


def step(file, **environment: str) -> dict:
    launch.tool(
        PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", 1, "--master-port", 29631,
        launch.PROGRAMS / "verl_ppo.py", file,
        PYTHONPATH=os.pathsep.join(filter(None, [os.environ.get("VERL_PATH", ""), SOURCE])), **environment,
    )  # fmt: skip
    return json.loads(file.read_text("utf-8"))


def test_a_step_of_ppo_as_on_the_cpu(tmp_path):
    device = step(tmp_path / "npu.json", SOFTNPU_DEVICES="1")
    cpu = step(tmp_path / "cpu.json", SOFTNPU="0")
    assert (device.pop("device"), cpu.pop("device")) == ("npu", "cpu")
    assert device.pop("responses") == cpu.pop("responses")
    for name, numbers in cpu.items():
        assert device[name] == pytest.approx(numbers, rel=1e-3), name
    moved = [
        after - before for before, after in zip(device["before"], device["after"], strict=True)
    ]
    assert [change > 0 for change in moved] == [False, True, False, True]  # good responses rise
