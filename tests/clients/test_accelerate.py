"""accelerate: its own test on one device and on two, and a loop that it launches on two."""

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


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_loop_launched_on_two_devices_learns_as_on_the_cpu(tmp_path, program, precision):
    script, found = program / "train.py", {}
    common = ("accelerate", "launch", "--num_machines=1", "--dynamo_backend=no")
    for name, options, more in (
        ("npu", ("--multi_gpu", "--num_processes=2", f"--mixed_precision={precision}"), ()),
        ("cpu", ("--cpu", "--num_processes=1", "--mixed_precision=no"), ("--cpu",)),
    ):
        (tmp_path / name).mkdir()
        options = tuple(o for o in options if o != "--multi_gpu")
        tool(*common, *options, script, tmp_path / name, *more, SOFTNPU_DEVICES="2")
        found[name] = json.loads((tmp_path / name / "found.json").read_text("utf-8"))
    npu, cpu = found["npu"], found["cpu"]
    assert npu["processes"] == 2 and npu["kind"] == "MULTI_NPU" and npu["device"] == "npu:0"
    assert cpu["processes"] == 1
    assert npu["losses"][-1] < 0.5 * npu["losses"][0]
    # Two processes take two batches a step: the CPU's loop is compared where its batches are the same.
    near = {"no": 1e-4, "bf16": 5e-2}[precision]
    first = sum(cpu["losses"][:2]) / 2
    torch.testing.assert_close(npu["losses"][0], first, rtol=near, atol=near)
