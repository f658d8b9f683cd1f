"""npu_attention_update against attention over all keys at once."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make


def parts(count, dtype, rows=5, size=16):
    lse = [make(rows, low=-5, high=5, seed=i) for i in range(count)]
    return lse, [make(rows, size, dtype=dtype, seed=i + 9) for i in range(count)]


def expected(lse, outs, dtype):
    sums = torch.stack([t.cpu().to(dtype) for t in lse])
    sums = torch.where(sums == torch.inf, -torch.inf, sums)
    total = torch.logsumexp(sums, 0)
    weights = (sums - total).exp()
    return sum(w[:, None] * o.cpu().to(dtype) for w, o in zip(weights, outs, strict=True)), total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_merge(dtype, count):
    lse, outs = parts(count, dtype)
    out, total = torch_npu.npu_attention_update(lse, outs, 1)
    right, sums = expected(lse, outs, torch.float64)
    assert_accurate(out, right, expected(lse, outs, torch.float32)[0].to(dtype))
    torch.testing.assert_close(total.cpu().double(), sums, rtol=1e-6, atol=1e-6)
    assert out.dtype == dtype and total.dtype == torch.float32


def test_without_the_logsumexp():
    lse, outs = parts(2, torch.float32)
    out, total = torch_npu.npu_attention_update(lse, outs, 0)
    assert total.numel() == 0
    assert torch.equal(out.cpu(), torch_npu.npu_attention_update(lse, outs, 1)[0].cpu())


def test_parts_without_keys_count_for_nothing():
    lse, outs = parts(2, torch.float32)
    lse[1].fill_(torch.inf)
    out, total = torch_npu.npu_attention_update(lse, outs, 1)
    torch.testing.assert_close(out.cpu(), outs[0].cpu())
    torch.testing.assert_close(total.cpu(), lse[0].cpu())


def test_it_is_the_attention_over_all_keys():
    query, key, value = make(4, 8), make(10, 8, seed=1), make(10, 8, seed=2)
    scores = query @ key.T
    lse = [scores[:, :6].logsumexp(1), scores[:, 6:].logsumexp(1)]
    outs = [scores[:, :6].softmax(1) @ value[:6], scores[:, 6:].softmax(1) @ value[6:]]
    merged, total = torch_npu.npu_attention_update(lse, outs, 1)
    torch.testing.assert_close(merged, scores.softmax(1) @ value)
    torch.testing.assert_close(total, scores.logsumexp(1))


@pytest.mark.parametrize(
    "lse,outs,kind,message",
    [
        (2, 2, 2, "'update_type' must be 0 or 1, but received 2"),
        (1, 2, 0, "'local_out' must be of 1 tensors"),
        (129, 129, 0, "'lse' must be of 1 to 128 tensors"),
    ],
)
def test_counts(lse, outs, kind, message):
    with pytest.raises(RuntimeError, match=f"npu_attention_update: argument {message}"):
        torch_npu.npu_attention_update([make(4)] * lse, [make(4, 8)] * outs, kind)


def test_counts_on_ascend950():
    with on("A5"), pytest.raises(RuntimeError, match="'lse' must be of 1 to 16 tensors"):
        torch_npu.npu_attention_update([make(4)] * 17, [make(4, 8)] * 17, 0)


@pytest.mark.parametrize("size", [4, 12, 520])
def test_head_sizes(size):
    with pytest.raises(RuntimeError, match="head size from 8 to 512, a multiple of 8"):
        torch_npu.npu_attention_update([make(4)], [make(4, size)], 0)
