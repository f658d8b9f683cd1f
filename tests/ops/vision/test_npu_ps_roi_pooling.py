"""npu_ps_roi_pooling and its gradient against loops written from the definition."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

#: x1, y1, x2, y2 for each of two images: inside, a point, across the far border, outside, all of the map
SPOTS = [
    [[1, 2, 9, 12], [3, 3, 3, 3], [10, 8, 90, 70], [200, 200, 210, 220], [0, 0, 24, 20]],
    [[0.4, 0.5, 7.5, 6.49], [0, 0, 0.2, 15], [21, 0, 23, 3], [5, 5, 6, 5], [2, 17, 30, 18]],
]
SCALE = 0.5


def regions(dtype=torch.float32):
    spots = torch.tensor(SPOTS).permute(0, 2, 1)
    image = torch.arange(2.0)[:, None, None].expand(2, 1, 5)
    return torch.cat([image, spots], 1).to(dtype)


def bins(roi, group, height, width):
    """(p, q, rows, columns) that each bin covers; single precision decides, as on the card."""
    f = np.float32
    x1, y1 = f(np.round(f(roi[1]))) * f(SCALE), f(np.round(f(roi[2]))) * f(SCALE)
    x2, y2 = f(np.round(f(roi[3]) + f(1))) * f(SCALE), f(np.round(f(roi[4]) + f(1))) * f(SCALE)
    w, h = max(x2 - x1, f(0.1)) / f(group), max(y2 - y1, f(0.1)) / f(group)
    for p in range(group):
        for q in range(group):
            rows = range(
                min(max(math.floor(f(p) * h + y1), 0), height),
                min(max(math.ceil(f(p + 1) * h + y1), 0), height),
            )
            columns = range(
                min(max(math.floor(f(q) * w + x1), 0), width),
                min(max(math.ceil(f(q + 1) * w + x1), 0), width),
            )
            yield p, q, rows, columns


def walk(rois, group, height, width):
    """(region, image, p, q, pixels) of every bin that is not empty."""
    flat = rois.float().permute(0, 2, 1).reshape(-1, 5).tolist()
    for k, roi in enumerate(flat):
        for p, q, rows, columns in bins(roi, group, height, width):
            pixels = [(r, c) for r in rows for c in columns]
            if pixels:
                yield k, int(roi[0]), p, q, pixels


def forward(x, rois, group, dim):
    x = x.double().numpy()
    out = np.zeros((rois.shape[0] * rois.shape[2], dim, group, group))
    for k, image, p, q, pixels in walk(rois, group, *x.shape[2:]):
        for c in range(dim):
            channel = x[image, (c * group + p) * group + q]
            out[k, c, p, q] = sum(channel[r, s] for r, s in pixels) / len(pixels)
    return torch.from_numpy(out)


def backward(grad, rois, group, dim, height, width):
    grad = grad.double().numpy()
    out = np.zeros((rois.shape[0], dim * group * group, height, width))
    for k, image, p, q, pixels in walk(rois, group, height, width):
        for c in range(dim):
            for r, s in pixels:
                out[image, (c * group + p) * group + q, r, s] += grad[k, c, p, q] / len(pixels)
    return torch.from_numpy(out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("group,dim", [(1, 3), (2, 2), (3, 1), (7, 2)])
def test_forward(dtype, group, dim):
    x, rois = make(2, dim * group**2, 10, 12, dtype=dtype), regions(dtype)
    result = torch_npu.npu_ps_roi_pooling(x, rois.npu(), SCALE, group, dim)
    want = forward(x.cpu(), rois, group, dim)
    assert result.dtype == dtype and result.shape == (10, dim, group, group)
    assert_accurate(result, want, want.to(dtype))


def test_region_outside_gives_zeros():
    result = torch_npu.npu_ps_roi_pooling(make(2, 8, 10, 12), regions().npu(), SCALE, 2, 2)
    assert not result[3].any() and result[0].all()


@pytest.mark.parametrize("group,dim", [(2, 2), (3, 1)])
def test_backward(group, dim):
    grad, rois = make(10, dim, group, group), regions()
    result = torch.ops.npu.npu_ps_roi_pooling_backward(
        grad, rois.npu(), SCALE, group, dim, [10, 12]
    )
    want = backward(grad.cpu(), rois, group, dim, 10, 12)
    assert_accurate(result, want, want.float())


def test_gradients():
    x = make(2, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    rois = regions(torch.float64)[:, :, :3].npu()
    gradcheck(lambda x: torch_npu.npu_ps_roi_pooling(x, rois, SCALE, 2, 1), x)


def test_infinite_features_outside_a_bin_do_not_leak():
    x = torch.full((1, 4, 8, 8), float("inf")).npu()
    x[:, :, :4, :4] = 1
    rois = torch.tensor([0.0, 0, 0, 3, 3]).reshape(1, 5, 1).npu()
    assert (torch_npu.npu_ps_roi_pooling(x, rois, 1.0, 2, 1) == 1).all()


def test_unknown_image_of_a_region_that_reads_nothing():
    rois = regions()
    rois[0, 0, 3] = 7  # the region outside the map
    rois = rois.npu()
    x = make(2, 8, 10, 12).requires_grad_()
    result = torch_npu.npu_ps_roi_pooling(x, rois, SCALE, 2, 2)
    result.sum().backward()
    assert not result[3].any() and x.grad.isfinite().all()


def test_no_regions_and_non_contiguous():
    assert torch_npu.npu_ps_roi_pooling(make(2, 8, 4, 4), make(2, 5, 0), 1.0, 2, 2).shape == (
        0,
        2,
        2,
        2,
    )
    x = make(2, 10, 12, 8).permute(0, 3, 1, 2)
    args = (regions().npu(), SCALE, 2, 2)
    turned = torch_npu.npu_ps_roi_pooling(x, *args)
    assert torch.equal(turned, torch_npu.npu_ps_roi_pooling(x.contiguous(), *args))


@pytest.mark.parametrize(
    "place,value,message",
    [
        ((0, 0, 0), 2.0, r"of images in \[0, 2\).*2 at index 0"),
        ((1, 0, 1), -1.0, r"of images in \[0, 2\).*-1 at index 6"),
    ],
)
def test_bad_regions(place, value, message):
    rois = regions()
    rois[place] = value
    with pytest.raises(
        RuntimeError, match=f"npu_ps_roi_pooling: argument 'rois' must be {message}"
    ):
        torch_npu.npu_ps_roi_pooling(make(2, 8, 10, 12), rois.npu(), SCALE, 2, 2)


def test_bad_shapes():
    with pytest.raises(
        RuntimeError, match=r"argument 'rois' must be of shape \(\*, 5, \*\).*\(2, 4, 3\)"
    ):
        torch_npu.npu_ps_roi_pooling(make(2, 8, 4, 4), make(2, 4, 3), 1.0, 2, 2)
    with pytest.raises(
        RuntimeError, match=r"argument 'self' must be of shape \(2, 8, \*, \*\).*\(2, 9"
    ):
        torch_npu.npu_ps_roi_pooling(make(2, 9, 4, 4), regions().npu(), 1.0, 2, 2)
    with pytest.raises(RuntimeError, match="argument 'rois' must be a tensor of 3 dimensions"):
        torch_npu.npu_ps_roi_pooling(make(2, 8, 4, 4), make(2, 5), 1.0, 2, 2)


@pytest.mark.parametrize(
    "name,numbers",
    [("group_size", (1.0, 128, 2)), ("output_dim", (1.0, 2, 0)), ("spatial_scale", (-1.0, 2, 2))],
)
def test_bad_numbers(name, numbers):
    with pytest.raises(RuntimeError, match=f"npu_ps_roi_pooling: argument '{name}' must be"):
        torch_npu.npu_ps_roi_pooling(make(2, 8, 4, 4), regions().npu(), *numbers)
