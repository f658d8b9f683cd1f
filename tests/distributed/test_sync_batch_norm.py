"""torch.nn.SyncBatchNorm over ranks is BatchNorm over the whole batch, forward, backward and running statistics."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.distributed import job

#: samples of each rank; the statistics weigh them
COUNTS = (3, 5)


def whole(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(sum(COUNTS), 4, 3, 2, generator=torch.Generator().manual_seed(1)).to(dtype)


def module(kind: type[nn.Module]) -> nn.Module:
    norm = kind(4, momentum=0.3)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 1.5, -2.0, 1.0]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
    return norm


def expected(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    norm = module(nn.BatchNorm2d).double()
    x = whole(dtype).double().requires_grad_()
    y = norm(x)
    (y * torch.arange(y.numel()).view(y.shape).sin()).sum().backward()
    return {
        "y": y.detach(), "dx": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad,
        "mean": norm.running_mean, "var": norm.running_var,
    }  # fmt: skip


def synchronized(rank: int, name: str) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, name)
    norm = module(nn.SyncBatchNorm).npu()
    start = sum(COUNTS[:rank])
    rows = slice(start, start + COUNTS[rank])
    x = whole(dtype)[rows].npu().requires_grad_()
    y = norm(x)
    factors = torch.arange(whole(dtype).numel()).view(whole(dtype).shape).sin()[rows].npu()
    (y * factors).sum().backward()
    for parameter in norm.parameters():
        dist.all_reduce(parameter.grad)
    return {
        "y": y.detach().cpu(), "dx": x.grad.cpu(), "weight": norm.weight.grad.cpu(),
        "bias": norm.bias.grad.cpu(), "mean": norm.running_mean.cpu(), "var": norm.running_var.cpu(),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_two_ranks_are_one_batch(name: str) -> None:
    found = job.run(synchronized, 2, name)
    want = expected(getattr(torch, name))
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[name]
    for key in ("y", "dx"):
        joined = torch.cat([part[key] for part in found])
        torch.testing.assert_close(joined.double(), want[key], rtol=tolerance, atol=tolerance)
    for part in found:
        for key in ("weight", "bias"):  # dy itself is rounded to the dtype of y
            torch.testing.assert_close(
                part[key].double(), want[key], rtol=tolerance, atol=tolerance
            )
        for key in ("mean", "var"):
            torch.testing.assert_close(part[key].double(), want[key], rtol=1e-5, atol=1e-5)


def test_what_is_not_asked_for_is_not_made() -> None:
    x, dy = torch.randn(4, 3, 2).npu(), torch.randn(4, 3, 2).npu()
    mean, invstd = torch.batch_norm_stats(x, 1e-5)
    sums = torch.batch_norm_backward_reduce(dy, x, mean, invstd, None, True, False, False)
    assert sums[2] is None and sums[3] is None
    assert torch.allclose(sums[0], dy.sum((0, 2)), atol=1e-5)


def test_statistics_of_equal_counts() -> None:
    parts = torch.randn(2, 6, 3, 4, dtype=torch.float64).npu()
    stats = [torch.batch_norm_stats(part, 1e-5) for part in parts]
    means, scales = (torch.stack(list(s)) for s in zip(*stats, strict=True))
    mean, invstd = torch.batch_norm_gather_stats(parts[0], means, scales, None, None, 0.1, 1e-5, 24)
    joint = parts.cpu().flatten(0, 1)
    var = joint.var((0, 2), correction=0)
    assert torch.allclose(mean.cpu(), joint.mean((0, 2)))
    assert torch.allclose(invstd.cpu(), (var + 1e-5).rsqrt())
