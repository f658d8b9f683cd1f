"""npu_rotated_box_decode against a loop over boxes."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


def reference(anchors, deltas, weight):
    out = torch.zeros(anchors.shape, dtype=torch.float64)
    for b in range(anchors.shape[0]):
        for i in range(anchors.shape[2]):
            p = anchors[b, :, i].double().tolist()
            d = (deltas[b, :, i].double() / weight.double()).tolist()
            for a in (0, 1):
                side = p[a + 2] - p[a]
                center = (p[a] + p[a + 2]) / 2 + side * d[a]
                half = side * math.exp(d[a + 2]) / 2
                out[b, a, i], out[b, a + 2, i] = center - half, center + half
            out[b, 4, i] = math.degrees(math.atan(math.tan(math.radians(p[4])) + d[4]))
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("b,n", [(2, 7), (1, 1), (1, 0)])
def test_boxes(dtype, b, n):
    anchors = make(b, 5, n, low=1, high=20).cumsum(1).to(dtype)
    deltas, weight = make(b, 5, n, dtype=dtype), make(5, low=1, high=3, dtype=dtype)
    result = torch_npu.npu_rotated_box_decode(anchors, deltas, weight)
    want = reference(anchors.cpu(), deltas.cpu(), weight.cpu())
    assert result.dtype == dtype and result.shape == (b, 5, n)
    assert_accurate(result, want, want.to(dtype), slack=1e-4)


@pytest.mark.family("A2")
def test_zero_weight():
    """As on the card, it divides: what comes out is not finite, and the rest stands."""
    weight = torch.tensor([0.0, 1, 1, 1, 1]).npu()
    anchors, deltas = make(1, 5, 2, low=1, high=20).cumsum(1), make(1, 5, 2, low=1)
    result = torch_npu.npu_rotated_box_decode(anchors, deltas, weight)
    plain = torch_npu.npu_rotated_box_decode(anchors, deltas, torch.ones(5).npu())
    assert not result[:, 0].isfinite().any() and torch.equal(result[:, 1], plain[:, 1])


def test_bad_shapes():
    with pytest.raises(RuntimeError, match=r"argument 'deltas' must be of shape \(1, 5, 2\)"):
        torch_npu.npu_rotated_box_decode(make(1, 5, 2), make(1, 5, 3), torch.ones(5).npu())
    with pytest.raises(RuntimeError, match="argument 'self' must be a tensor of 3 dimensions"):
        torch_npu.npu_rotated_box_decode(make(5, 2), make(5, 2), torch.ones(5).npu())
