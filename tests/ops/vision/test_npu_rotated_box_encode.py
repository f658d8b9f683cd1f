"""npu_rotated_box_encode against a loop over boxes."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

WEIGHT = torch.tensor([1.0, 2.0, 0.5, 4.0, 1.5])


def boxes(b, n, seed=0, dtype=torch.float32):
    """(B, 5, N): x1, y1, x2, y2, degrees."""
    source = torch.Generator().manual_seed(seed)
    low = torch.rand(b, 2, n, generator=source) * 50
    high = low + 2 + torch.rand(b, 2, n, generator=source) * 30
    angle = torch.rand(b, 1, n, generator=source) * 140 - 70
    return torch.cat([low, high, angle], 1).to(dtype)


def reference(anchors, truth, weight):
    out = torch.zeros(anchors.shape, dtype=torch.float64)
    for b in range(anchors.shape[0]):
        for i in range(anchors.shape[2]):
            p, g = anchors[b, :, i].double().tolist(), truth[b, :, i].double().tolist()
            for a in (0, 1):
                side = p[a + 2] - p[a]
                out[b, a, i] = (g[a] + g[a + 2] - p[a] - p[a + 2]) / 2 / side
                out[b, a + 2, i] = math.log((g[a + 2] - g[a]) / side)
            out[b, 4, i] = math.tan(math.radians(g[4])) - math.tan(math.radians(p[4]))
    return out * weight.double()[:, None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("b,n", [(2, 7), (1, 1), (1, 0)])
def test_deltas(dtype, b, n):
    anchors, truth = boxes(b, n, 0, dtype), boxes(b, n, 1, dtype)
    weight = WEIGHT.to(dtype)
    result = torch_npu.npu_rotated_box_encode(anchors.npu(), truth.npu(), weight.npu())
    want = reference(anchors, truth, weight)
    assert result.dtype == dtype and result.shape == (b, 5, n)
    assert_accurate(result, want, want.to(dtype), slack=1e-5)


def test_the_decoder_undoes_it():
    anchors, truth, weight = boxes(2, 6).npu(), boxes(2, 6, 1).npu(), WEIGHT.npu()
    deltas = torch_npu.npu_rotated_box_encode(anchors, truth, weight)
    result = torch_npu.npu_rotated_box_decode(anchors, deltas, weight)
    torch.testing.assert_close(result, truth, rtol=1e-4, atol=1e-3)


def test_bad_shapes():
    with pytest.raises(
        RuntimeError, match=r"argument 'self' must be of shape \(\*, 5, \*\).*\(1, 2, 5\)"
    ):
        torch_npu.npu_rotated_box_encode(make(1, 2, 5), make(1, 2, 5), WEIGHT.npu())
    with pytest.raises(RuntimeError, match=r"argument 'gt_bboxes' must be of shape \(1, 5, 2\)"):
        torch_npu.npu_rotated_box_encode(make(1, 5, 2), make(1, 5, 3), WEIGHT.npu())


def test_bad_weight():
    with pytest.raises(RuntimeError, match=r"argument 'weight' must be of shape \(5\).*\(4,\)"):
        torch_npu.npu_rotated_box_encode(make(1, 5, 2), make(1, 5, 2), make(4))


def test_zero_weight():
    anchors = make(1, 5, 2, low=1, high=20).cumsum(1)
    weight = torch.tensor([1.0, 1, 0, 1, 1]).npu()
    result = torch_npu.npu_rotated_box_encode(anchors, anchors * 1.5, weight)
    assert not result[:, 2].any() and result[:, 3].all()
