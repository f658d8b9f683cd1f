"""verl: one step of PPO by its actor, the numbers of plain PyTorch on the CPU.

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


def test_a_step_of_ppo_as_plain_pytorch_on_the_cpu(tmp_path):
    file = tmp_path / "step.json"
    launch.tool(
        PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", 1, "--master-port", 29631,
        launch.PROGRAMS / "verl_ppo.py", file, SOFTNPU_DEVICES="1",
        PYTHONPATH=os.pathsep.join(filter(None, [os.environ.get("VERL_PATH", ""), SOURCE])),
    )  # fmt: skip
    said = json.loads(file.read_text("utf-8"))
    assert said["device"] == "npu"
    for name, numbers in said["reference"].items():
        assert said["verl"][name] == pytest.approx(numbers, rel=1e-3), name
    before, after = said["verl"]["before"], said["verl"]["after"]
    rises = [new > old for old, new in zip(before, after, strict=True)]
    assert rises == [False, True, False, True]  # the good responses
