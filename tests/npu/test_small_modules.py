"""torch_npu.jit, the cache of FFT plans, utils._dynamo, and a device's UUID."""

from __future__ import annotations

import uuid

import pytest
import torch

import torch_npu


def test_gelu_becomes_fast_gelu():
    def program(x):
        return torch.nn.functional.gelu(x * 2)

    x = torch.linspace(-2, 2, 12).view(3, 4).npu()
    traced = torch.jit.trace(program, x)
    before = traced(x)
    torch_npu.jit.optimize(traced)
    kinds = [node.kind() for node in traced.graph.nodes()]
    assert "npu::fast_gelu" in kinds and "aten::gelu" not in kinds
    assert (traced(x) - before).abs().max() < 0.05


def test_cache_of_fft_plans():
    cache = torch.npu.backends.fft_plan_cache
    before = cache.max_size
    try:
        cache.max_size = 20
        assert cache.max_size == 20
        for wrong in (0, 100):
            with pytest.raises(RuntimeError, match=f"from 1 to 99, but is {wrong}"):
                cache.max_size = wrong
    finally:
        cache.max_size = before
    with pytest.raises(RuntimeError, match="read-only"):
        cache.size = 1
    torch.fft.fft(torch.ones(4, device="npu"))
    cache.clear()
    assert cache.size == 0


def test_dynamo_knows_the_device():
    from torch._dynamo.device_interface import get_interface_for_device

    from torch_npu.utils._dynamo import _dynamo_register_interface_for_device

    _dynamo_register_interface_for_device()
    assert get_interface_for_device("npu").device_count() == torch.npu.device_count()


def test_properties_of_a_device():
    first, second = (torch.npu.get_device_properties(index) for index in (0, 1))
    assert isinstance(first.uuid, uuid.UUID) and len(str(first.uuid)) == 36
    assert first.uuid == torch.npu.get_device_properties(0).uuid != second.uuid
    assert first.major is None and first.warp_size is None
