"""The native choice of the largest: gates of experts, and top-k with top-p."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, compare, randn, special, views
from torch_npu.ops.moe.npu_moe_gating_top_k import npu_moe_gating_top_k
from torch_npu.ops.moe.npu_moe_gating_top_k_softmax import npu_moe_gating_top_k_softmax
from torch_npu.ops.sampling.npu_top_k_top_p import npu_top_k_top_p


def rows(x, k):
    return torch.ops.softnpu.top_k_rows(x, k)


def sorted_first(x, k):
    return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]


@pytest.mark.parametrize("width", [1, 5, 8, 9, 33, 64, 300])
def test_top_k_rows(width):
    for x in (randn(7, width), randn(7, width).round(), special(randn(7, width))):
        for k in {1, min(2, width), min(8, width), min(33, width), width}:
            assert torch.equal(rows(x, k), sorted_first(x, k))
    for x in views(randn(3, 4, width)):
        assert torch.equal(rows(x, 1), sorted_first(x, 1))
    assert rows(randn(0, width), 1).shape == (0, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gating_softmax(dtype):
    for k in (1, 3, 8):
        for x in views(randn(5, 40, dtype=dtype)):
            compare(npu_moe_gating_top_k_softmax, x, None, k, exact=False)
        done = torch.tensor([True, False, False, True, False])
        compare(npu_moe_gating_top_k_softmax, x, done, k, exact=False)
    compare(npu_moe_gating_top_k_softmax, randn(2, 3, 16, dtype=dtype), None, 16, exact=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [0, 1])
def test_gating(dtype, norm):
    x, bias = randn(6, 32, dtype=dtype), randn(32, dtype=dtype)
    run = {"norm_type": norm, "exact": False}
    compare_gate(x, 4, **run)
    compare_gate(x, 4, bias=bias, k_group=2, group_count=4, group_select_mode=1, **run)
    compare_gate(x, 5, k_group=3, group_count=8, out_flag=True, routed_scaling_factor=2.5, **run)
    compare_gate(x, 2, input_ids=torch.arange(6), tid2eid=torch.arange(12).view(6, 2).int(), **run)


def compare_gate(*args, **kwargs):
    compare(npu_moe_gating_top_k, *args, **kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_top_p(dtype):
    for width in (1, 8, 50, 257, 3000):
        x = randn(5, width, dtype=dtype, scale=3)
        p = torch.tensor([0.0, 0.3, 0.9, 1.0, 0.55]).to(dtype)
        k = torch.tensor([1, 2, 5, 40, 1000], dtype=torch.int32).clamp(max=width)
        compare(npu_top_k_top_p, x, p, k, exact=False)
        compare(npu_top_k_top_p, x, p, None, exact=False)
        compare(npu_top_k_top_p, x, None, k, exact=False)
        compare(npu_top_k_top_p, x.round(), p, k, exact=False)


def test_top_k_top_p_strides_and_special_values():
    p, k = torch.full((6,), 0.7), torch.full((6,), 9, dtype=torch.int32)
    for x in views(randn(6, 70, scale=3)):
        compare(npu_top_k_top_p, x, p, k, strides=False, exact=False)
    x = randn(6, 70)
    x[0, 3], x[1, 4], x[2], x[3, :60] = torch.nan, torch.inf, -torch.inf, -torch.inf
    x[4, ::2], x[4, 1::2] = 0.0, -0.0
    compare(npu_top_k_top_p, x, p, k, exact=False)
    compare(npu_top_k_top_p, x, None, torch.tensor([0, 70, 71, -1, 3, 1]).int(), exact=False)
