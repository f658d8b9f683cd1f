"""torch.autograd.profiler on npu: the device's time of an operator, taken by events."""

from __future__ import annotations

import torch

import torch_npu  # noqa: F401


def times(profile):
    """Microseconds on the device of each operator that the program itself called, with those it called in turn."""
    return {event.key: event.device_time_total for event in profile.key_averages()}


def test_operators_have_a_time_on_the_device(capfd):
    x = torch.randn(256, 256, device="npu")
    with torch.autograd.profiler.profile(use_device="npu") as profile:
        (x @ x).relu()
    found = times(profile)
    assert found["aten::mm"] > found["aten::relu"] > 0
    assert found["aten::matmul"] >= found["aten::mm"]
    assert "Exception in RecordFunction callback" not in capfd.readouterr().err
    assert "NPU time" in profile.key_averages().table()


def test_a_profile_of_the_host_alone_records_no_events():
    with torch.autograd.profiler.profile() as profile:
        torch.ones(4, device="npu").relu()
    found = times(profile)
    assert found["aten::relu"] == 0


def test_operators_of_another_stream_and_of_the_backward_pass():
    x = torch.randn(256, 256, device="npu", requires_grad=True)
    with torch.autograd.profiler.profile(use_device="npu") as profile:
        with torch.npu.stream(torch.npu.Stream()):
            y = (x @ x).sum()
        y.backward()
        torch.npu.synchronize()
    found = times(profile)
    assert found["aten::mm"] > 0 and found["autograd::engine::evaluate_function: MmBackward0"] > 0
