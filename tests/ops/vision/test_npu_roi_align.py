"""npu_roi_align and npu_roi_alignbk against loops written from the definition."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

#: image, x1, y1, x2, y2: inside, across each border, far outside, a point, a line, larger than the map
ROIS = [
    [0, 1.3, 2.1, 6.4, 7.7],
    [1, -3.0, -2.5, 4.0, 3.0],
    [1, 9.0, 7.0, 25.0, 21.0],
    [0, 60.0, 60.0, 70.0, 80.0],
    [0, -90.0, 0.0, -50.0, 8.0],
    [1, 5.0, 5.0, 5.0, 5.0],
    [0, 2.0, 3.0, 9.0, 3.0],
    [0, -10.0, -10.0, 40.0, 40.0],
]


def taps(height, width, y, x):
    """[(row, column, weight), ...] of a bilinear sample; none more than a pixel outside."""
    if y < -1 or y > height or x < -1 or x > width:
        return []
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    r, c = int(y), int(x)
    below, right = min(r + 1, height - 1), min(c + 1, width - 1)
    dy, dx = y - r, x - c
    return [
        (r, c, (1 - dy) * (1 - dx)),
        (r, right, (1 - dy) * dx),
        (below, c, dy * (1 - dx)),
        (below, right, dy * dx),
    ]


def samples(roi, scale, ph, pw, count, mode, height, width):
    """(p, q, row, column, weight) of every tap of a region."""
    x1, y1, x2, y2 = (v * scale for v in roi[1:])
    if mode == 1:
        x2, y2 = x2 + scale, y2 + scale
    elif mode >= 2:
        x1, y1, x2, y2 = x1 - 0.5, y1 - 0.5, x2 - 0.5, y2 - 0.5
    w, h = x2 - x1, y2 - y1
    if mode < 2:
        w, h = max(w, 1.0), max(h, 1.0)
    sh = count or max(1, math.ceil(h / ph))
    sw = count or max(1, math.ceil(w / pw))
    for p in range(ph):
        for q in range(pw):
            for i in range(sh):
                for j in range(sw):
                    y = y1 + (p + (i + 0.5) / sh) * h / ph
                    x = x1 + (q + (j + 0.5) / sw) * w / pw
                    for r, c, weight in taps(height, width, y, x):
                        yield p, q, r, c, weight / (sh * sw)


def forward(x, rois, scale, ph, pw, count, mode):
    x = x.double().numpy()
    out = np.zeros((len(rois), x.shape[1], ph, pw))
    for k, roi in enumerate(rois.double().tolist()):
        for p, q, r, c, weight in samples(roi, scale, ph, pw, count, mode, *x.shape[2:]):
            out[k, :, p, q] += weight * x[int(roi[0]), :, r, c]
    return torch.from_numpy(out)


def backward(grad, rois, shape, scale, ph, pw, count, mode):
    grad, out = grad.double().numpy(), np.zeros(shape)
    for k, roi in enumerate(rois.double().tolist()):
        for p, q, r, c, weight in samples(roi, scale, ph, pw, count, mode, *shape[2:]):
            out[int(roi[0]), :, r, c] += weight * grad[k, :, p, q]
    return torch.from_numpy(out)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_forward(mode, count):
    x, rois = make(2, 3, 8, 11), torch.tensor(ROIS)
    result = torch_npu.npu_roi_align(x, rois.npu(), 0.5, 2, 3, count, mode)
    want = forward(x.cpu(), rois, 0.5, 2, 3, count, mode)
    assert result.shape == (8, 3, 2, 3) and result.is_contiguous()
    assert_accurate(result, want, want.float(), slack=1e-5)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [0, 2])
def test_backward(mode, count):
    grad, rois, shape = make(8, 3, 2, 3), torch.tensor(ROIS), [2, 3, 8, 11]
    result = torch_npu.npu_roi_alignbk(grad, rois.npu(), shape, 3, 2, 0.5, count, mode)
    want = backward(grad.cpu(), rois, shape, 0.5, 2, 3, count, mode)
    assert result.shape == tuple(shape)
    assert_accurate(result, want, want.float(), slack=1e-5)


def test_backward_takes_mode_1_by_default():
    grad, rois = make(8, 1, 2, 2), torch.tensor(ROIS).npu()
    default = torch_npu.npu_roi_alignbk(grad, rois, [2, 1, 8, 8], 2, 2, 1.0, 2)
    assert torch.equal(
        default, torch_npu.npu_roi_alignbk(grad, rois, [2, 1, 8, 8], 2, 2, 1.0, 2, 1)
    )
    assert not torch.equal(
        default, torch_npu.npu_roi_alignbk(grad, rois, [2, 1, 8, 8], 2, 2, 1.0, 2, 0)
    )


@pytest.mark.parametrize("mode,count", [(0, 2), (1, 0), (2, 1), (3, 0)])
def test_gradients(mode, count):
    x = make(2, 1, 4, 5, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor([ROIS[0], ROIS[1], ROIS[5], ROIS[7]], dtype=torch.float64).npu()
    gradcheck(lambda x: torch_npu.npu_roi_align(x, rois, 0.5, 2, 2, count, mode), x)


@pytest.mark.parametrize(
    "features,corners",
    [
        (torch.float16, torch.float16),
        (torch.float16, torch.float32),
        (torch.float32, torch.float16),
    ],
)
def test_half_precision(features, corners):
    x, rois = make(2, 3, 8, 11, dtype=features), torch.tensor(ROIS).to(corners)
    result = torch_npu.npu_roi_align(x, rois.npu(), 0.5, 2, 2, 2, 0)
    assert result.dtype == torch.float16
    want = forward(x.cpu(), rois, 0.5, 2, 2, 2, 0)
    assert_accurate(result, want, want.half())


@pytest.mark.parametrize("count", [0, 2])
def test_infinite_features_outside_a_region_do_not_leak(count):
    x = make(1, 1, 12, 12)
    x[0, 0, 9:, :] = float("inf")
    x[0, 0, :, 9:] = float("nan")
    rois = torch.tensor([[0.0, 1, 1, 8, 8], [0, 0.5, 0.5, 2, 7]]).npu()
    assert torch_npu.npu_roi_align(x, rois, 1.0, 2, 2, count, 0).isfinite().all()


def test_a_huge_region_takes_finite_memory():
    """Just some of its samples fall on the map."""
    rois = torch.tensor([[0.0, -40000.0, -40000.0, 40000.0, 40000.0]])
    result = torch_npu.npu_roi_align(torch.ones(1, 1, 6, 5).npu(), rois.npu(), 1.0, 2, 2, 0, 0)
    # of 40000 samples an axis, those at -0.5 and at 0.5, 1.5, ... to the far border count
    want = torch.tensor([[1.0, 5.0], [6.0, 30.0]]) / 40000**2
    torch.testing.assert_close(result[0, 0].cpu(), want, rtol=1e-3, atol=0)


def test_non_contiguous_and_single_pixel():
    x = make(2, 8, 9, 3).permute(0, 3, 1, 2)
    rois = torch.tensor(ROIS).npu()
    args = (rois, 0.5, 2, 2, 2, 0)
    assert torch.equal(
        torch_npu.npu_roi_align(x, *args), torch_npu.npu_roi_align(x.contiguous(), *args)
    )
    one = torch_npu.npu_roi_align(torch.full((2, 1, 1, 1), 3.0).npu(), rois[5:6], 0.1, 1, 1, 1, 0)
    assert one.tolist() == [[[[3.0]]]]


def test_no_regions():
    assert torch_npu.npu_roi_align(make(1, 2, 4, 4), make(0, 5), 1.0, 3, 2, 2, 0).shape == (
        0,
        2,
        3,
        2,
    )
    grad = torch_npu.npu_roi_alignbk(make(0, 2, 3, 2), make(0, 5), [1, 2, 4, 4], 2, 3, 1.0, 2)
    assert grad.shape == (1, 2, 4, 4) and not grad.any()


@pytest.mark.parametrize(
    "place,value,message",
    [
        ((0, 0), 2.0, r"of images in \[0, 2\).*2.0 at index 0"),
        ((1, 0), -1.0, r"of images in \[0, 2\).*-1.0 at index 1"),
    ],
)
def test_bad_regions(place, value, message):
    rois = torch.tensor(ROIS)
    rois[place] = value
    with pytest.raises(RuntimeError, match=f"npu_roi_align: argument 'rois' must be {message}"):
        torch_npu.npu_roi_align(make(2, 1, 4, 4), rois.npu(), 1.0, 2, 2, 2, 0)
    with pytest.raises(RuntimeError, match=f"npu_roi_alignbk: argument 'rois' must be {message}"):
        torch_npu.npu_roi_alignbk(make(8, 1, 2, 2), rois.npu(), [2, 1, 4, 4], 2, 2, 1.0, 2)


def test_a_region_of_negative_sides_is_one_pixel_wide():
    """Modes 0 and 1 make sides at least 1, whichever way they point."""
    x = make(1, 2, 6, 6)
    rois = torch.tensor([[0.0, 3, 2, 1, 0], [0, 3, 2, 3.5, 2.5]])
    turned, small = torch_npu.npu_roi_align(x, rois.npu(), 1.0, 2, 2, 2, 0)
    assert torch.equal(turned, small)


def test_bad_shapes():
    with pytest.raises(RuntimeError, match=r"argument 'rois' must be of shape \(\*, 5\).*\(3, 4\)"):
        torch_npu.npu_roi_align(make(2, 1, 4, 4), make(3, 4), 1.0, 2, 2, 2, 0)
    with pytest.raises(RuntimeError, match="argument 'self' must be a tensor of 4 dimensions"):
        torch_npu.npu_roi_align(make(2, 4, 4), make(3, 5), 1.0, 2, 2, 2, 0)
    with pytest.raises(
        RuntimeError, match=r"argument 'self' must be of shape \(1, 1, 2, 3\).*\(1, 1, 3, 2\)"
    ):
        torch_npu.npu_roi_alignbk(
            make(1, 1, 3, 2), torch.zeros(1, 5).npu(), [1, 1, 4, 4], 3, 2, 1.0, 2
        )


@pytest.mark.parametrize(
    "name,numbers",
    [
        ("spatial_scale", (0.0, 2, 2, 2, 0)),
        ("pooled_height", (1.0, 0, 2, 2, 0)),
        ("pooled_width", (1.0, 2, -1, 2, 0)),
        ("sample_num", (1.0, 2, 2, -1, 0)),
        ("roi_end_mode", (1.0, 2, 2, 2, 4)),
    ],
)
def test_bad_numbers(name, numbers):
    with pytest.raises(RuntimeError, match=f"npu_roi_align: argument '{name}' must be"):
        torch_npu.npu_roi_align(make(2, 1, 4, 4), torch.zeros(1, 5).npu(), *numbers)
