"""Operators that PyTorch's CPU kernels round in between in half precision accumulate in fp32 here, as on the card."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_npu  # noqa: F401

HALVES = [torch.bfloat16, torch.float16]


def values(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(shape, generator=generator).to(dtype)


def batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True)


#: name -> function of (floats of the dtype..., indices), their shapes, the indices
CASES = {
    "addr": (torch.addr, [(9, 7), (9,), (7,)], None),
    "batch_norm": (batch_norm, [(64, 5, 20), (5,), (5,)], None),
    "nll_loss": (F.nll_loss, [(4000, 3)], lambda: torch.arange(4000) % 3),
    "nll_loss2d": (F.nll_loss, [(2, 3, 40, 50)], lambda: torch.arange(4000).view(2, 40, 50) % 3),
    "bce_with_logits": (
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w, reduction="none"),
        [(40, 30), (40, 30), (30,)],
        None,
    ),
    "embedding_bag": (
        lambda weight, index: F.embedding_bag(index, weight, mode="sum"),
        [(50, 6)],
        lambda: (torch.arange(2000) % 50).view(2, 1000),
    ),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), [(1, 2, 8, 8, 8)], None),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), [(1, 2, 9, 9)], None),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), [(1, 2, 9, 9)], None),
    "trilinear": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="trilinear"), [(1, 2, 5, 5, 5)], None,
    ),
    "grid_sample": (
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        [(1, 2, 9, 9), (1, 5, 5, 2)],
        None,
    ),
    "index_reduce": (
        lambda x, source, index: x.index_reduce(0, index, source, "mean"),
        [(3, 4), (600, 4)],
        lambda: torch.arange(600) % 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_accumulates_in_fp32(name, dtype):
    function, shapes, indices = CASES[name]
    inputs = [values(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes)]
    index = [] if indices is None else [indices()]
    found = function(*(x.npu() for x in inputs), *(i.npu() for i in index))
    want = function(*(x.double() for x in inputs), *index)
    assert found.dtype == dtype and found.shape == want.shape
    ulp = torch.finfo(dtype).eps * want.abs().clamp(min=2.0**-6)
    assert ((found.cpu().double() - want).abs() <= 1.01 * ulp).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_running_statistics_are_kept(dtype):
    x = values(64, 5, 20, dtype=dtype)
    mean, var = torch.zeros(5, dtype=dtype).npu(), torch.ones(5, dtype=dtype).npu()
    F.batch_norm(x.npu(), mean, var, training=True, momentum=0.5)
    want = x.double().mean((0, 2)) * 0.5, 0.5 + x.double().var((0, 2)) * 0.5
    for found, exact in zip((mean, var), want, strict=True):
        assert ((found.cpu().double() - exact).abs() <= torch.finfo(dtype).eps * exact.abs()).all()
