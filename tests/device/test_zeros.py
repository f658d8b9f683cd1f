"""Zeros cost no host memory until they are written: pages that nobody touched read as zero already."""

import pytest
import torch

import torch_npu  # noqa: F401
from tests.device.arena import GIB, MIB, clean, resident  # noqa: F401


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(4 * GIB, dtype=torch.int8, device="npu"),
        lambda: torch.zeros(2, GIB, dtype=torch.bfloat16, device="npu"),
        lambda: torch.empty(GIB, dtype=torch.float32, device="npu").zero_(),
        lambda: torch.full((GIB,), 0, dtype=torch.int32, device="npu"),
        lambda: torch.full((GIB,), 0.0, device="npu"),
        lambda: torch.zeros_like(torch.empty(GIB, device="npu")),
        lambda: torch.empty(0, device="npu").new_zeros(GIB),
    ],
    ids=["int8", "bfloat16", "zero_", "full", "full_float", "zeros_like", "new_zeros"],
)
def test_four_gib_of_zeros_cost_no_host_memory(make):
    before = resident()
    x = make()
    assert resident() - before < 64 * MIB
    flat = x.view(-1)
    assert flat[0].item() == 0 and flat[-1].item() == 0 and flat[12345678].item() == 0


def test_a_key_value_cache_costs_what_is_used():
    before = resident()
    cache = torch.zeros(57 * GIB, dtype=torch.int8, device="npu")
    cache[: 32 * MIB] = 7
    assert 31 * MIB < resident() - before < 160 * MIB
    assert cache[32 * MIB - 1].item() == 7 and cache[32 * MIB].item() == 0


def test_memory_that_was_written_is_zeroed():
    x = torch.full((16 * MIB,), 3, dtype=torch.int8, device="npu")
    address = x.data_ptr()
    del x
    y = torch.zeros(16 * MIB, dtype=torch.int8, device="npu")
    assert y.data_ptr() == address
    assert not y.any()


def test_a_tensor_that_was_written_in_part_is_zeroed():
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="npu")
    x[5 * MIB + 17 : 9 * MIB + 3] = 255
    x[40 * MIB] = 1
    x.zero_()
    assert not x.any()


def test_a_slice_is_zeroed_and_its_neighbours_are_left_alone():
    x = torch.ones(32 * MIB, dtype=torch.uint8, device="npu")
    x[1001 : 20 * MIB + 77].zero_()
    assert x[:1001].all() and x[20 * MIB + 77 :].all()
    assert not x[1001 : 20 * MIB + 77].any()


@pytest.mark.parametrize("fill", [lambda x: x.zero_(), lambda x: x.fill_(0)])
def test_strided_tensors_keep_what_lies_between(fill):
    x = torch.ones(4096, 4096, device="npu")
    fill(x[:, ::2])
    assert x[:, 1::2].sum().item() == 4096 * 2048 and not x[:, ::2].any()
    y = torch.ones(4096, 2048, device="npu").t()  # dense, though not in order
    fill(y)
    assert not y.any()


def test_minus_zero_is_written():
    x = torch.full((4 * MIB,), -0.0, device="npu")
    assert torch.signbit(x).all()


def test_a_captured_zero_is_replayed():
    x = torch.ones(8 * MIB, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.zero_()
    assert x.all()
    graph.replay()
    assert not x.any()
