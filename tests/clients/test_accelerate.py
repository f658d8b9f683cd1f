"""accelerate: its own test on one device, on two and on all, and a loop that it launches on two."""

from __future__ import annotations

import json

import pytest
import torch

from tests.clients.launch import tool


@pytest.mark.parametrize("devices", [1, 2])
def test_its_own_test_passes(devices):
    said = tool("accelerate", "test", SOFTNPU_DEVICES=str(devices))
    assert "Test is a success!" in said
    assert f"Num processes: {devices}" in said and "Device: npu" in said
    assert ("MULTI_NPU" in said) == (devices > 1)


def test_its_own_checks_pass_on_every_device(program):
    said = tool("accelerate", "launch", program / "own_checks.py", SOFTNPU_DEVICES="8")
    assert "Num processes: 8" in said and "Device: npu:7" in said
    assert "**Test reinstantiated state**" in said, "the last of its checks"


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_loop_launched_on_two_devices_learns_as_on_the_cpu(tmp_path, program, precision):
    launchers = {
        "npu": ("accelerate", "launch", "--num_machines=1", "--num_processes=2",
                "--dynamo_backend=no", f"--mixed_precision={precision}"),
        "cpu": ("torchrun", "--standalone", "--nproc-per-node=2"),  # accelerate would need MPI
    }  # fmt: skip
    found = {}
    for device, launcher in launchers.items():
        folder = tmp_path / device
        folder.mkdir()
        where = {"SOFTNPU": "0", "ACCELERATE_USE_CPU": "1"} if device == "cpu" else {}
        tool(*launcher, program / "train.py", folder, SOFTNPU_DEVICES="2", **where)
        found[device] = json.loads((folder / "found.json").read_text("utf-8"))
    npu, cpu = found["npu"], found["cpu"]
    assert npu["kind"] == "MULTI_NPU" and npu["device"] == "npu:0" and cpu["kind"] == "MULTI_CPU"
    assert npu["processes"] == cpu["processes"] == 2
    assert npu["losses"][-1] < 0.5 * npu["losses"][0]
    near = {"no": 1e-4, "bf16": 5e-2}[precision]
    torch.testing.assert_close(
        torch.tensor(npu["losses"]), torch.tensor(cpu["losses"]), rtol=near, atol=near
    )
