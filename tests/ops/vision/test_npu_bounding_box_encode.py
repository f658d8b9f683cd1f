"""npu_bounding_box_encode against a loop over boxes."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make
from tests.ops.vision._reference import boxes

MEANS, STDS = (0.1, -0.2, 0.3, 0.0), (0.1, 0.1, 0.2, 0.4)


def reference(anchors, truth, means, stds, magnitude=False):
    rows = []
    for p, g in zip(anchors.double().tolist(), truth.double().tolist(), strict=True):
        deltas = []
        for a in (0, 1):
            side = p[a + 2] - p[a] + 1
            deltas.append((g[a] + g[a + 2] - p[a] - p[a + 2]) / 2 / side)
        for a in (0, 1):
            ratio = (g[a + 2] - g[a] + 1) / (p[a + 2] - p[a] + 1)
            ratio = abs(ratio) if magnitude else ratio
            deltas.append(math.log(ratio) if ratio > 0 else math.nan)
        rows.append([(d - m) / s for d, m, s in zip(deltas, means, stds, strict=True)])
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n", [9, 1, 0])
def test_deltas_in_half_precision(dtype, n):
    p, g = boxes(n).half(), boxes(n, seed=1).half()
    result = torch_npu.npu_bounding_box_encode(p.to(dtype).npu(), g.to(dtype).npu(), *MEANS, *STDS)
    assert result.dtype == dtype and result.shape == (n, 4)
    want = reference(p, g, MEANS, STDS)
    torch.testing.assert_close(result.cpu().double(), want, rtol=5e-3, atol=2e-2)
    assert torch.equal(result.half().to(dtype), result)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_deltas_on_ascend950(dtype):
    p, g = boxes(9).to(dtype), boxes(9, seed=1).to(dtype)
    with on("A5"):
        result = torch_npu.npu_bounding_box_encode(p.npu(), g.npu(), *MEANS, *STDS)
    want = reference(p, g, MEANS, STDS)
    assert_accurate(result, want, want.to(dtype), slack=1e-5)


@pytest.mark.parametrize("family", ["A2", "A3", "A5", "310P", "910A"])
def test_negative_side(family):
    """NaN, or the logarithm of the magnitude on the two oldest products."""
    p, g = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[5.0, 8, 7, 6]])
    with on(family):
        result = torch_npu.npu_bounding_box_encode(p.npu(), g.npu(), *(0,) * 4, *(1,) * 4).cpu()
    want = reference(p, g, (0,) * 4, (1,) * 4, magnitude=family in ("310P", "910A"))
    torch.testing.assert_close(result.double(), want, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_zero_std():
    with pytest.raises(
        RuntimeError, match="npu_bounding_box_encode: argument 'stds2' must be other than 0.*0.0"
    ):
        torch_npu.npu_bounding_box_encode(make(2, 4), make(2, 4), *(0,) * 4, 1, 1, 0, 1)


def test_bad_shapes():
    with pytest.raises(
        RuntimeError, match=r"'ground_truth_box' must be of shape \(2, 4\).*\(3, 4\)"
    ):
        torch_npu.npu_bounding_box_encode(make(2, 4), make(3, 4), *(0,) * 4, *(1,) * 4)
    with pytest.raises(RuntimeError, match=r"'anchor_box' must be of shape \(\*, 4\).*\(2, 5\)"):
        torch_npu.npu_bounding_box_encode(make(2, 5), make(2, 5), *(0,) * 4, *(1,) * 4)
