"""npu_ifmr: the scale and offset that quantize a tensor with the least squared error."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op

_LOW, _HIGH, _LEVELS = -128.0, 127.0, 255.0

#: the most factors
_STEPS = 4096


@npu_op(
    "npu_ifmr(Tensor data, Tensor data_min, Tensor data_max, Tensor cumsum, float min_percentile, "
    "float max_percentile, float search_start, float search_end, float search_step, "
    "bool with_offset) -> (Tensor, Tensor)",
    ge="IFMR",
    aclop=True,
)
def npu_ifmr(
    data,
    data_min,
    data_max,
    cumsum,
    min_percentile,
    max_percentile,
    search_start,
    search_end,
    search_step,
    with_offset,
):
    r"""Searches the int8 scale and offset with the least squared error among candidates.

    Of the histogram's B bins, those below a percentile give the ends of the range:

    $$ u = \frac{\#\{cdf < p_{max}\}}{B} (max - min) + min, \qquad
       l = \frac{\#\{cdf < 1 - p_{min}\}}{B} (max - min) + min $$

    Candidate i has the upper end $u_i = (start + i \cdot step)\, u$. With an offset (u at least 0, l at most 0)
    $s_i = (u_i - l) / 255$ and $o_i = -\mathrm{round}(l / s_i) - 128$; without, $u = \max(u, |l|)$, $s_i = u_i / 127$ and
    $o_i = 0$. The one for which $\mathrm{clamp}(\mathrm{round}(x / s) + o, -128, 127)$ differs least from x is returned.

    Args:
        data: x, float32 or float16.
        data_min: (1,), its least value, of the dtype of `data`.
        data_max: (1,), its largest value.
        cumsum: (B,), int32: the cumulative histogram of `data` between them.
        min_percentile: in (0, 1].
        max_percentile: in (0, 1].
        search_start: the first factor, positive.
        search_end: the last factor, above `search_start`.
        search_step: from one factor to the next, positive; at most 4096 factors.
        with_offset: whether an offset is searched.

    Returns:
        s and o, float32, in the shape of `data_min`.
    """
    x = wide(data).flatten()
    low, high = (wide(t).to(x.dtype).reshape(()) for t in (data_min, data_max))
    cdf = cumsum.to(x.dtype) * (1 / data.numel())
    bins = cumsum.numel()
    top = (cdf < max_percentile).sum() * (1 / bins) * (high - low) + low
    bottom = (cdf < 1 - min_percentile).sum() * (1 / bins) * (high - low) + low
    count = int((search_end - search_start) / search_step + 0.5) + 1
    factors = search_start + search_step * torch.arange(count, dtype=x.dtype, device=x.device)
    if with_offset:
        top, bottom = top.clamp(min=0), bottom.clamp(max=0)
        scales = (factors * top - bottom) / _LEVELS
        offsets = -(bottom / scales).round() + _LOW
    else:
        scales = factors * torch.maximum(top, bottom.abs()) / _HIGH
        offsets = torch.zeros_like(scales)
    stored = ((x / scales.unsqueeze(1)).round() + offsets.unsqueeze(1)).clamp(_LOW, _HIGH)
    errors = ((stored - offsets.unsqueeze(1)) * scales.unsqueeze(1) - x).square().sum(1)
    best, shape = errors.argmin().reshape(1), data_min.shape
    return tuple(t.index_select(0, best).float().reshape(shape) for t in (scales, offsets))


@npu_ifmr.check
def _(
    data,
    data_min,
    data_max,
    cumsum,
    min_percentile,
    max_percentile,
    search_start,
    search_end,
    search_step,
):
    must.dtype("data", data, torch.float32, torch.float16)
    must.hold(data.numel() > 0, "data", "not empty", tuple(data.shape))
    for name, tensor in (("data_min", data_min), ("data_max", data_max)):
        must.same_dtype(name, tensor, "data", data)
        must.hold(tensor.numel() == 1, name, "of one element", tuple(tensor.shape))
        must.ndim(name, tensor, 1)
    must.dtype("cumsum", cumsum, torch.int32)
    must.hold(cumsum.numel() > 0, "cumsum", "not empty", tuple(cumsum.shape))
    for name, value in (("min_percentile", min_percentile), ("max_percentile", max_percentile)):
        must.hold(0 < value <= 1, name, "in (0, 1]", value)
    must.hold(search_step > 0, "search_step", "positive", search_step)
    must.hold(search_start > 0, "search_start", "positive", search_start)
    ok = search_end > search_start
    must.hold(ok, "search_end", f"above search_start ({search_start})", search_end)
    steps = (search_end - search_start) / search_step + 1  # beyond the integers for wild arguments
    fits = steps < _STEPS + 0.5
    must.hold(fits, "search_step", f"such that at most {_STEPS} factors are tried", steps)


@npu_ifmr.meta
def _(data_min):
    return tuple(data_min.new_empty(data_min.shape, dtype=torch.float32) for _ in range(2))


def _inputs(make, dtype):
    data = make(6, 20, dtype=dtype)
    bins = torch.ones_like(make(8, dtype=torch.int32, low=0, high=2)).cumsum(0).int() * 15
    return data, data.min().reshape(1), data.max().reshape(1), bins, 0.999, 0.999, 0.7, 1.3, 0.05


npu_ifmr.samples = [
    Sample(lambda make: (*_inputs(make, torch.float32), True)),
    Sample(lambda make: (*_inputs(make, torch.float16), False)),
]
