"""npu_bounding_box_decode against a loop over boxes, and as the inverse of the encoder."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make
from tests.ops.vision._reference import boxes

MEANS, STDS = (0.1, -0.2, 0.3, 0.0), (0.1, 0.1, 0.2, 0.4)


def reference(rois, deltas, means, stds, shape, clip):
    rows, bound = [], abs(math.log(clip))
    for p, d in zip(rois.double().tolist(), deltas.double().tolist(), strict=True):
        d = [v * s + m for v, s, m in zip(d, stds, means, strict=True)]
        low, high = [], []
        for a in (0, 1):
            side, last = p[a + 2] - p[a] + 1, shape[1 - a] - 1
            center = (p[a] + p[a + 2]) / 2 + side * d[a]
            size = side * math.exp(min(max(d[a + 2], -bound), bound))
            low.append(min(max(center - (size - 1) / 2, 0), last))
            high.append(min(max(center + (size - 1) / 2, 0), last))
        rows.append(low + high)
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n", [9, 1, 0])
@pytest.mark.parametrize("clip", [0.016, 0.5, 1.0, 4.0])
def test_boxes(dtype, n, clip):
    rois, deltas = boxes(n).to(dtype), make(n, 4, low=-6, high=6, dtype=dtype)
    result = torch_npu.npu_bounding_box_decode(rois.npu(), deltas, *MEANS, *STDS, (90, 110), clip)
    want = reference(rois, deltas.cpu(), MEANS, STDS, (90, 110), clip)
    assert result.dtype == dtype and result.shape == (n, 4)
    assert_accurate(result, want, want.to(dtype), slack=1e-4)


def test_undoes_the_encoder():
    rois, truth = boxes(9, span=50).npu(), boxes(9, seed=1, span=50).npu()
    numbers = (*MEANS, *STDS)
    with on("A5"):
        deltas = torch_npu.npu_bounding_box_encode(rois, truth, *numbers)
    result = torch_npu.npu_bounding_box_decode(rois, deltas, *numbers, (1000, 1000), 1e-6)
    torch.testing.assert_close(result, truth, rtol=1e-4, atol=1e-3)


def test_bad_clip():
    with pytest.raises(
        RuntimeError,
        match="npu_bounding_box_decode: argument 'wh_ratio_clip' must be positive.*0.0",
    ):
        torch_npu.npu_bounding_box_decode(make(2, 4), make(2, 4), *MEANS, *STDS, (9, 9), 0.0)


def test_bad_image():
    for shape, message in (((9,), r"\[H, W\].*\[9\]"), ((9, 0), r"positive.*\[9, 0\]")):
        with pytest.raises(RuntimeError, match=f"argument 'max_shape' must be {message}"):
            torch_npu.npu_bounding_box_decode(make(2, 4), make(2, 4), *MEANS, *STDS, shape, 0.1)


def test_other_dtype():
    with pytest.raises(RuntimeError, match="argument 'deltas' must be of the dtype of 'rois'"):
        torch_npu.npu_bounding_box_decode(make(2, 4), make(2, 4).half(), *MEANS, *STDS, (9, 9), 0.1)
