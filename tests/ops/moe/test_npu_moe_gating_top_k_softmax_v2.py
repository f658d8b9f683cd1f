"""npu_moe_gating_top_k_softmax_v2 against sorted lists."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import make, max_error


def softmax(row):
    top = max(row)
    parts = [math.exp(v - top) for v in row]
    return [p / sum(parts) for p in parts]


@pytest.mark.parametrize("renorm", [0, 1, None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 10)])
def test_against_lists(shape, dtype, renorm):
    x, k = make(*shape, dtype=dtype, low=-3, high=3), 4
    finished = make(*shape[:-1], dtype=torch.bool)
    y, expert, whole = torch_npu.npu_moe_gating_top_k_softmax_v2(
        x, k=k, finished=finished, renorm=renorm, output_softmax=True
    )
    assert y.dtype == dtype and expert.dtype == torch.int32
    assert y.shape == expert.shape == (*shape[:-1], k)
    rows = x.cpu().double().reshape(-1, 10).tolist()
    done = finished.cpu().flatten().tolist()
    values, experts = [], []
    for row, out in zip(rows, done, strict=True):
        order = sorted(range(10), key=lambda e: -row[e])[:k]
        weights = softmax([row[e] for e in order]) if renorm else [softmax(row)[e] for e in order]
        values.append(weights)
        experts.append([10] * k if out else order)
    assert expert.reshape(-1, k).tolist() == experts
    want = torch.tensor(values, dtype=torch.float64)
    assert max_error(y.reshape(-1, k), want) <= 1.1 * max_error(want.to(dtype), want) + 1e-6
    if renorm:
        assert whole.numel() == 0
    else:
        assert whole.dtype == torch.float32 and whole.shape == shape
        exact = torch.tensor([softmax(r) for r in rows])
        assert max_error(whole.reshape(-1, 10), exact) < 1e-6


def test_no_softmax_by_default():
    assert torch_npu.npu_moe_gating_top_k_softmax_v2(make(3, 4))[2].numel() == 0


@pytest.mark.parametrize(
    "options,message",
    [
        ({"k": 5}, r"'k' must be within \[1, 4\], but received 5"),
        ({"renorm": 2}, "'renorm' must be .*but received 2"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_moe_gating_top_k_softmax_v2(make(3, 4), **options)


def test_finished_shape():
    with pytest.raises(RuntimeError, match=r"'finished' must be of shape \(3\).*\(4,\)"):
        torch_npu.npu_moe_gating_top_k_softmax_v2(make(3, 4), finished=make(4, dtype=torch.bool))
