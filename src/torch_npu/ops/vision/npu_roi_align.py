"""npu_roi_align and npu_roi_alignbk: features of regions, by bilinear samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import first_bad
from torch_npu.ops.vision import _bags
from torch_npu.ops.vision._boxes import FLOATS

#: how many samples are held at once
SAMPLES = 1 << 20
#: the most samples a bin takes on one axis, where their number follows from its size
MAX = 1 << 16
HALF = torch.float16


class Bins(NamedTuple):
    """Which samples the bins of some regions take."""

    regions: torch.Tensor  # (k,) which regions these are
    rows: torch.Tensor  # (k * bins, length) rows of the feature table
    weights: torch.Tensor  # of the same shape


class Regions:
    """Regions on the feature map: image, start, size of a bin, samples a bin; y first, then x."""

    def __init__(
        self,
        rois: torch.Tensor,
        shape: list[int],
        pooled: tuple[int, int],
        spatial_scale: float,
        sample_num: int,
        roi_end_mode: int,
    ) -> None:
        self.shape, self.pooled = shape, pooled
        spots = wide(rois)
        self.image = spots[:, 0].nan_to_num().long()
        corners = spots[:, [2, 1, 4, 3]] * spatial_scale
        low, high = corners[:, :2], corners[:, 2:]
        if roi_end_mode == 1:
            high = high + spatial_scale
        elif roi_end_mode >= 2:
            low, high = low - 0.5, high - 0.5
        sides = high - low
        if roi_end_mode < 2:
            sides = sides.clamp(min=1)
        self.low = low
        self.step = sides / sides.new_tensor(pooled)
        adaptive = torch.ceil(self.step).nan_to_num(1).clamp(1, MAX).long()
        self.grid = torch.full_like(adaptive, sample_num) if sample_num > 0 else adaptive

    def _axis(self, axis: int, which: torch.Tensor, grid: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels that the bins read on one axis, and their weights; both (k, bins, length)."""
        size, step = self.shape[2 + axis], self.step[which, axis][:, None, None]
        device, dtype = step.device, step.dtype
        bins = torch.arange(self.pooled[axis], device=device, dtype=dtype)[None, :, None]
        inner = (torch.arange(grid, device=device, dtype=dtype) + 0.5)[None, None, :] / grid
        spot = self.low[which, axis][:, None, None] + (bins + inner) * step
        outside = (spot < -1) | (spot > size)
        spot = spot.clamp(0, size - 1)
        low = spot.floor().nan_to_num().long()
        part = spot - low
        near = torch.stack([low, (low + 1).clamp(max=size - 1)], -1)
        weight = torch.stack([1 - part, part], -1).masked_fill(outside[..., None], 0) / grid
        near, weight = near.flatten(2), weight.flatten(2)
        first, last = near.amin(2, keepdim=True), near.amax(2, keepdim=True)
        length = int((last - first).max()) + 1
        if near.shape[2] <= length:
            return near, weight
        # more samples than pixels: their weights on each pixel are added up first
        pixels = torch.minimum(first + torch.arange(length, device=device), last)
        return pixels, weight.new_zeros(pixels.shape).scatter_add_(2, near - first, weight)

    def bins(self) -> Iterator[Bins]:
        """All bins, in groups of regions that take equally many samples."""
        images, _, height, width = self.shape
        known = (self.image >= 0) & (self.image < images)
        for grid in torch.unique(self.grid, dim=0).tolist():
            same = (self.grid == self.grid.new_tensor(grid)).all(1).nonzero()[:, 0]
            each = self.pooled[0] * self.pooled[1]
            each *= min(2 * grid[0], height) * min(2 * grid[1], width)
            for which in same.split(max(1, SAMPLES // each)):
                y, wy = self._axis(0, which, grid[0])
                x, wx = self._axis(1, which, grid[1])
                base = (self.image[which].clamp(0, images - 1) * height)[:, None, None, None, None]
                rows = (base + y[:, :, None, :, None]) * width + x[:, None, :, None, :]
                weights = wy[:, :, None, :, None] * wx[:, None, :, None, :]
                weights = weights * known[which][:, None, None, None, None]
                count = rows.shape[0] * rows.shape[1] * rows.shape[2]
                yield Bins(which, rows.reshape(count, -1), weights.reshape(count, -1))


def _check_rois(rois: torch.Tensor, images: int) -> None:
    must.dtype("rois", rois, *FLOATS)
    must.ndim("rois", rois, 2)
    must.shape("rois", rois, (None, 5))
    if must.has_data(rois):
        host = rois.detach().cpu().double()
        image = host[:, 0]
        first_bad("rois", f"of images in [0, {images})", image, (image < 0) | (image >= images))


def _check_numbers(
    pooled_height: int, pooled_width: int, spatial_scale: float, sample_num: int, roi_end_mode: int
) -> None:
    must.hold(pooled_height > 0, "pooled_height", "positive", pooled_height)
    must.hold(pooled_width > 0, "pooled_width", "positive", pooled_width)
    must.hold(spatial_scale > 0, "spatial_scale", "positive", spatial_scale)
    must.hold(sample_num >= 0, "sample_num", "at least 0", sample_num)
    must.choice("roi_end_mode", roi_end_mode, (0, 1, 2, 3))


@npu_op(
    "npu_roi_align(Tensor self, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
    "int sample_num, int roi_end_mode) -> Tensor"
)
def npu_roi_align(self, rois, spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode):
    r"""Features of regions of interest: each bin is the mean of bilinear samples.

    $$ y_{k c p q} = \frac{1}{S_h S_w} \sum_{i, j} \mathrm{bilinear}\bigl(x_{b_k c},\
       y_1 + (p + \tfrac{i + 1/2}{S_h}) \tfrac{h}{P_h},\ x_1 + (q + \tfrac{j + 1/2}{S_w}) \tfrac{w}{P_w}\bigr) $$

    A sample more than one pixel outside the map counts 0; up to there the border's value holds.

    Args:
        self: (N, C, H, W) features, float16 or float32.
        rois: (K, 5), rows image, x1, y1, x2, y2, in pixels of the image; float16 or float32.
        spatial_scale: size of the features over size of the image.
        pooled_height: P_h.
        pooled_width: P_w.
        sample_num: S_h = S_w, samples a bin on each axis; 0 for the size of the bin, rounded up (at most 65536).
        roi_end_mode: 0 takes corners as they are; 1 adds a pixel to the second corner (before scaling); 2 and 3
            move both by half a pixel of the map. With 0 and 1, sides of regions are at least 1.

    Returns:
        (K, C, P_h, P_w), in float16 if either input is, else in the dtype of `self`.

    Constraints:
        Images in [0, N). Upstream's page gives rois 4 columns; its operator
        and its examples take 5.

    Differs from upstream: its operator carries no gradient of its own; here autograd calls `npu_roi_alignbk`.
    """
    n, c, h, w = self.shape
    pooled = (pooled_height, pooled_width)
    regions = Regions(rois, [n, c, h, w], pooled, spatial_scale, sample_num, roi_end_mode)
    table = wide(self).permute(0, 2, 3, 1).reshape(n * h * w, c)
    result = table.new_zeros(rois.shape[0], *pooled, c)
    for bins in regions.bins():
        found = _bags.gather(table, bins.rows, bins.weights.to(table.dtype))
        result[bins.regions] = found.reshape(-1, *pooled, c)
    half = torch.float16 in (self.dtype, rois.dtype)
    return result.permute(0, 3, 1, 2).contiguous().to(torch.float16 if half else self.dtype)


@npu_roi_align.check
def _(self, rois, spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode):
    must.dtype("self", self, *FLOATS)
    must.ndim("self", self, 4)
    must.hold(
        min(self.shape[2:]) > 0,
        "self",
        "at least 1 x 1 pixel",
        tuple(self.shape),
        ErrCode.PARAM,
    )
    _check_rois(rois, self.shape[0])
    _check_numbers(pooled_height, pooled_width, spatial_scale, sample_num, roi_end_mode)


@npu_roi_align.meta
def _(self, rois, pooled_height, pooled_width):
    half = torch.float16 in (self.dtype, rois.dtype)
    shape = (rois.shape[0], self.shape[1], pooled_height, pooled_width)
    return self.new_empty(shape, dtype=torch.float16 if half else self.dtype)


@npu_roi_align.backward
def _(grad, *, self, rois, spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode):
    dself = torch.ops.npu.npu_roi_alignbk(
        grad,
        rois,
        list(self.shape),
        pooled_width,
        pooled_height,
        spatial_scale,
        sample_num,
        roi_end_mode,
    )
    return {"self": dself}


npu_roi_align.samples = [
    Sample(lambda make: (make(2, 3, 6, 5, dtype=HALF), _dot(make, 2, 5), 0.5, 2, 3, 2, 0)),
    Sample(lambda make: (make(2, 3, 6, 5), _sample_rois(make), 0.5, 2, 2, 0, 3)),
    Sample(lambda make: (make(2, 1, 4, 4), _sample_rois(make), 1.0, 1, 2, 1, 1)),
]


def _dot(make, *shape):
    """Regions of one point of image 1."""
    return make(*shape, low=1, high=1, dtype=HALF, requires_grad=False)


def _sample_rois(make):
    """Two regions: image 0 or 1, corners in order."""
    image = make(2, 1, dtype=torch.int32, low=0, high=2).float()
    return torch.cat([image, make(2, 4, low=0, high=3, requires_grad=False).cumsum(1)], 1)


@npu_op(
    "npu_roi_alignbk(Tensor self, Tensor rois, int[] xdiff_shape, int pooled_width, int pooled_height, "
    "float spatial_scale, int sample_num, int? roi_end_mode=None) -> Tensor"
)
def npu_roi_alignbk(
    self, rois, xdiff_shape, pooled_width, pooled_height, spatial_scale, sample_num, roi_end_mode
):
    """The gradient of `npu_roi_align` with respect to its features.

    Args:
        self: (K, C, P_h, P_w), the gradient of the result; float16 or float32.
        rois: (K, 5), as in the forward.
        xdiff_shape: [N, C, H, W] of the features.
        pooled_width: P_w.
        pooled_height: P_h.
        spatial_scale: as in the forward.
        sample_num: as in the forward.
        roi_end_mode: as in the forward; None for 1.

    Returns:
        The gradient, of shape `xdiff_shape` and the dtype of `self`.
    """
    n, c, h, w = xdiff_shape
    mode = 1 if roi_end_mode is None else roi_end_mode
    pooled = (pooled_height, pooled_width)
    regions = Regions(rois, [n, c, h, w], pooled, spatial_scale, sample_num, mode)
    grads = wide(self).permute(0, 2, 3, 1)
    table = grads.new_zeros(n * h * w, c)
    for rows in regions.bins():
        values = grads[rows.regions].reshape(-1, c)
        bags = torch.arange(len(values), device=self.device)[:, None].expand_as(rows.rows)
        weights = rows.weights.reshape(-1).to(table.dtype)
        _bags.spread(table, values, rows.rows.reshape(-1), bags.reshape(-1), weights)
    return table.reshape(n, h, w, c).permute(0, 3, 1, 2).contiguous().to(self.dtype)


@npu_roi_alignbk.check
def _(
    self, rois, xdiff_shape, pooled_width, pooled_height, spatial_scale, sample_num, roi_end_mode
):
    must.dtype("self", self, *FLOATS)
    must.hold(len(xdiff_shape) == 4, "xdiff_shape", "[N, C, H, W]", list(xdiff_shape))
    must.hold(min(xdiff_shape) > 0, "xdiff_shape", "positive", list(xdiff_shape))
    must.countable("xdiff_shape", math.prod(xdiff_shape), list(xdiff_shape))
    _check_rois(rois, xdiff_shape[0])
    must.shape("self", self, (rois.shape[0], xdiff_shape[1], pooled_height, pooled_width))
    mode = 1 if roi_end_mode is None else roi_end_mode
    _check_numbers(pooled_height, pooled_width, spatial_scale, sample_num, mode)


@npu_roi_alignbk.meta
def _(self, xdiff_shape):
    return self.new_empty(xdiff_shape)


npu_roi_alignbk.samples = [
    Sample(
        lambda make: (
            make(2, 3, 2, 3, dtype=HALF),
            _dot(make, 2, 5),
            [2, 3, 6, 5],
            3,
            2,
            0.5,
            2,
        )
    ),
    Sample(lambda make: (make(2, 1, 2, 2), _sample_rois(make), [2, 1, 4, 4], 2, 2, 1.0, 0, 2)),
]
