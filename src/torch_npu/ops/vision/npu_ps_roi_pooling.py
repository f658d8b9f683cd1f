"""npu_ps_roi_pooling and its gradient: position-sensitive means over regions."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import first_bad
from torch_npu.ops.vision import _bags
from torch_npu.ops.vision._boxes import FLOATS

HALF = torch.float16


class Bins:
    """Which pixels each bin of each region covers: bins in order (region, row, column), pixels of a bin in order."""

    def __init__(
        self, rois: torch.Tensor, spatial_scale: float, group_size: int, height: int, width: int
    ) -> None:
        spots = wide(rois).permute(0, 2, 1).reshape(-1, 5)
        self.image = spots[:, 0].long()
        low = torch.round(spots[:, 1:3]) * spatial_scale
        high = torch.round(spots[:, 3:5] + 1) * spatial_scale
        step = (high - low).clamp(min=0.1) / group_size
        bins = torch.arange(group_size, device=spots.device, dtype=spots.dtype)[None, :, None]
        size = torch.tensor([width, height], device=spots.device)
        first = torch.floor(bins * step[:, None] + low[:, None]).long()
        last = torch.ceil((bins + 1) * step[:, None] + low[:, None]).long()
        self.first = torch.minimum(first.clamp(min=0), size)  # (k, bins, 2): x, then y
        sides = (torch.minimum(last.clamp(min=0), size) - self.first).clamp(min=0)
        shape = (len(spots), group_size, group_size)
        self.width = sides[:, None, :, 0].expand(shape)
        self.area = self.width * sides[:, :, None, 1]
        self.group, self.shape = group_size, (height, width)

    def pixels(self, images: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of the feature table that all bins cover, one after another, and which bin each is of.

        A region of no known image covers nothing.
        """
        known = (self.image >= 0) & (self.image < images)
        self.area = self.area * known[:, None, None]
        g, (height, width) = self.group, self.shape
        count = self.area.reshape(-1)
        start, total = count.cumsum(0) - count, int(count.sum())
        bag = torch.zeros(total + 1, dtype=torch.long, device=count.device)
        bag = bag.index_add_(0, start, torch.ones_like(start)).cumsum(0)[:total] - 1
        nth = torch.arange(total, device=count.device) - start[bag]
        wide_bin = self.width.reshape(-1)[bag]
        region, cell = bag // (g * g), bag % (g * g)
        y = self.first[region, cell // g, 1] + nth // wide_bin
        x = self.first[region, cell % g, 0] + nth % wide_bin
        image = self.image[region] * (g * g) + cell
        return (image * height + y) * width + x, bag

    def scale(self, dtype: torch.dtype) -> torch.Tensor:
        """1 / pixels of each bin, as a column; 0 for an empty one."""
        area = self.area.reshape(-1, 1).to(dtype)
        return torch.where(area > 0, 1 / area.clamp(min=1), 0.0)


def _check(
    rois: torch.Tensor, spatial_scale: float, group_size: int, output_dim: int, size: list[int]
) -> None:
    must.dtype("rois", rois, *FLOATS)
    must.ndim("rois", rois, 3)
    must.shape("rois", rois, (None, 5, None))
    must.hold(spatial_scale > 0, "spatial_scale", "positive", spatial_scale)
    must.hold(0 < group_size < 128, "group_size", "in (0, 128)", group_size)
    must.hold(output_dim > 0, "output_dim", "positive", output_dim)
    if must.has_data(rois):
        host = rois.detach().cpu()
        bins = Bins(host, spatial_scale, group_size, *size)
        unknown = (bins.image < 0) | (bins.image >= len(host))
        reads = unknown & (bins.area.sum((1, 2)) > 0)
        first_bad("rois", f"of images in [0, {len(host)})", bins.image, reads)


@npu_op(
    "npu_ps_roi_pooling(Tensor self, Tensor rois, float spatial_scale, int group_size, int output_dim) -> Tensor",
    aclop=True,
)
def npu_ps_roi_pooling(self, rois, spatial_scale, group_size, output_dim):
    r"""Position-sensitive pooling of regions: each bin is the mean of its own channel over the pixels it covers.

    $$ y_{k c p q} = \frac{1}{\lvert B_{kpq} \rvert} \sum_{(i, j) \in B_{kpq}} x_{b_k,\ (c G + p) G + q,\ i,\ j} $$

    The region reaches from round(x1) s to round(x2 + 1) s, at least 0.1 wide, and is cut into G x G bins; a bin covers
    the pixels from the floor of its start to the ceiling of its end, clipped to the map. An empty bin gives 0.

    Args:
        self: (N, C, H, W) features, C = output_dim G G; float16 or float32.
        rois: (N, 5, R), R regions an image: image, x1, y1, x2, y2, in pixels of the image; of the same dtype.
        spatial_scale: s, size of the features over size of the image.
        group_size: G, in (0, 128).
        output_dim: channels of the result.

    Returns:
        (N R, output_dim, G, G) in the dtype of `self`.

    Constraints:
        Images in [0, N); a region that lies outside the map and
        so reads nothing may name any image.
    """
    n, _, h, w = self.shape
    bins = Bins(rois, spatial_scale, group_size, h, w)
    rows, _ = bins.pixels(n)
    split = wide(self).reshape(n, output_dim, group_size, group_size, h, w)
    table = split.permute(0, 2, 3, 4, 5, 1).reshape(-1, output_dim)
    count = bins.area.reshape(-1)
    found = _bags.gather(table, rows, starts=count.cumsum(0) - count)
    means = found * bins.scale(table.dtype)
    pooled = means.reshape(-1, group_size, group_size, output_dim)
    return pooled.permute(0, 3, 1, 2).contiguous().to(self.dtype)


@npu_ps_roi_pooling.check
def _(self, rois, spatial_scale, group_size, output_dim):
    must.dtype("self", self, *FLOATS)
    must.ndim("self", self, 4)
    must.same_dtype("rois", rois, "self", self)
    _check(rois, spatial_scale, group_size, output_dim, list(self.shape[2:]))
    must.shape("self", self, (rois.shape[0], output_dim * group_size**2, None, None))


@npu_ps_roi_pooling.meta
def _(self, rois, group_size, output_dim):
    return self.new_empty(rois.shape[0] * rois.shape[2], output_dim, group_size, group_size)


@npu_ps_roi_pooling.backward
def _(grad, *, self, rois, spatial_scale, group_size, output_dim):
    dself = torch.ops.npu.npu_ps_roi_pooling_backward(
        grad, rois, spatial_scale, group_size, output_dim, list(self.shape)[2:]
    )
    return {"self": dself}


npu_ps_roi_pooling.samples = [
    Sample(lambda make: (make(2, 8, 6, 5, dtype=HALF), _dot(make), 0.5, 2, 2)),
    Sample(lambda make: (make(2, 8, 6, 5), _sample_rois(make), 0.5, 2, 2)),
    Sample(
        lambda make: (
            make(2, 9, 4, 4, dtype=torch.float16),
            _sample_rois(make).half(),
            1.0,
            3,
            1,
        )
    ),
]


def _dot(make):
    """Regions of one point of image 1."""
    return make(2, 5, 3, low=1, high=1, dtype=HALF, requires_grad=False)


def _sample_rois(make):
    """Three regions for each of two images, corners in order."""
    image = torch.arange(2.0)[:, None, None].expand(2, 1, 3)
    spots = make(2, 4, 3, low=0, high=4, requires_grad=False).cumsum(1)
    return torch.cat([image.to(spots), spots], 1)


@npu_op(
    "npu_ps_roi_pooling_backward(Tensor output_grad, Tensor rois, float spatial_scale, int group_size, "
    "int output_dim, SymInt[] input_size) -> Tensor",
    aclop=True,
)
def npu_ps_roi_pooling_backward(
    output_grad, rois, spatial_scale, group_size, output_dim, input_size
):
    """The gradient of `npu_ps_roi_pooling` with respect to its features.

    Args:
        output_grad: (N R, output_dim, G, G), the gradient of the result.
        rois: (N, 5, R), as in the forward.
        spatial_scale: as in the forward.
        group_size: as in the forward.
        output_dim: as in the forward.
        input_size: [H, W] of the features.

    Returns:
        The gradient, (N, output_dim G G, H, W), in the dtype of `output_grad`.
    """
    n, (h, w) = rois.shape[0], input_size[:2]
    bins = Bins(rois, spatial_scale, group_size, h, w)
    rows, bags = bins.pixels(n)
    values = wide(output_grad).permute(0, 2, 3, 1).reshape(-1, output_dim)
    values = values * bins.scale(values.dtype)
    table = values.new_zeros(n * group_size**2 * h * w, output_dim)
    _bags.spread(table, values, rows, bags, values.new_ones(len(rows)))
    split = table.reshape(n, group_size, group_size, h, w, output_dim)
    whole = split.permute(0, 5, 1, 2, 3, 4).reshape(n, output_dim * group_size**2, h, w)
    return whole.contiguous().to(output_grad.dtype)


@npu_ps_roi_pooling_backward.check
def _(output_grad, rois, spatial_scale, group_size, output_dim, input_size):
    must.dtype("output_grad", output_grad, *FLOATS)
    ok = len(input_size) >= 2 and all(size >= 0 for size in input_size[:2])
    must.hold(ok, "input_size", "[H, W] of at least 0", list(input_size))
    _check(rois, spatial_scale, group_size, output_dim, list(input_size[:2]))
    pixels = rois.shape[0] * group_size**2 * input_size[0] * input_size[1]
    must.countable("input_size", pixels * output_dim, list(input_size))
    regions = rois.shape[0] * rois.shape[2]
    must.shape("output_grad", output_grad, (regions, output_dim, group_size, group_size))


@npu_ps_roi_pooling_backward.meta
def _(output_grad, rois, group_size, output_dim, input_size):
    return output_grad.new_empty(
        rois.shape[0], output_dim * group_size**2, input_size[0], input_size[1]
    )


npu_ps_roi_pooling_backward.samples = [
    Sample(lambda make: (make(6, 2, 2, 2, dtype=HALF), _dot(make), 0.5, 2, 2, [6, 5])),
    Sample(lambda make: (make(6, 2, 2, 2), _sample_rois(make), 0.5, 2, 2, [6, 5])),
]
