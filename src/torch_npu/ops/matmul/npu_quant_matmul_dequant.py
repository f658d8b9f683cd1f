"""npu_quant_matmul_dequant and npu_quant_grouped_matmul_dequant: rows quantized to int8, multiplied, scaled back."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import int_product
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops._shared._scales import scale_of
from torch_npu.ops.matmul import _groups


def _quantized(x, x_scale, smooth):
    """int8 rows and their scales. The kernel multiplies by a scale's reciprocal, which decides halves."""
    x = x.float() if smooth is None else x.float() * smooth.float()
    if x_scale is not None:
        scale = x_scale.float().reshape(-1, 1)
    else:
        scale = x.abs().amax(-1, keepdim=True) / 127
    return saturate(x * torch.where(scale == 0, 1.0, scale).reciprocal(), torch.int8), scale


def _check(x, weight, weight_scale, bias, x_scale, x_offset, smooth, mode):
    must.dtype("x", x, torch.float16)
    must.ndim("x", x, 2)
    must.dtype("quantized_weight", weight, torch.int8)
    must.unset("bias", bias)
    must.unset("x_offset", x_offset)
    must.choice("quant_mode", mode, (None, "pertoken", "pertensor"))
    rows, depth = x.shape
    columns = weight.shape[-2]
    fits = weight.shape[-1] == depth
    must.hold(
        fits, "quantized_weight", f"of rows of {depth}, as 'x'", tuple(weight.shape), ErrCode.PARAM
    )
    for size in (columns, depth):
        expected = "of rows and columns divisible by 16"
        must.hold(size % 16 == 0, "quantized_weight", expected, tuple(weight.shape), ErrCode.PARAM)
    lying = weight.is_contiguous()
    must.hold(lying, "quantized_weight", "contiguous", f"strides {weight.stride()}", ErrCode.PARAM)
    must.dtype("weight_scale", weight_scale, torch.float32, torch.int64)
    must.shape("weight_scale", weight_scale, (*weight.shape[:-2], columns))
    must.dtype("smooth_scale", smooth, torch.float16)
    must.shape("smooth_scale", smooth, (depth,))
    if mode == "pertensor":
        must.present("x_scale", x_scale, "for quant_mode 'pertensor'")
    if x_scale is None:
        return
    # the kernel has two forms: float32 scales on both sides, or packed ones beside float16
    kind = torch.float32 if weight_scale.dtype == torch.float32 else torch.float16
    must.dtype("x_scale", x_scale, kind)
    if mode != "pertensor" or x_scale.dim() > 0:
        must.shape("x_scale", x_scale, (1,) if mode == "pertensor" else (rows,))


@npu_op(
    "npu_quant_matmul_dequant(Tensor x, Tensor quantized_weight, Tensor weight_scale, *, "
    "Tensor? bias=None, Tensor? x_scale=None, Tensor? x_offset=None, Tensor? smooth_scale=None, "
    "str? quant_mode='pertoken') -> Tensor",
    product=True,
    chips=("310P",),
)
def npu_quant_matmul_dequant(x, quantized_weight, weight_scale, x_scale, smooth_scale):
    r"""Quantizes rows to int8, multiplies by int8 weights, and scales back to float16.

    $$ q = \mathrm{round}\left(\frac{x \cdot smooth}{s}\right), \qquad y = (q\, w^T) \cdot s_w \cdot s $$

    Args:
        x: (M, K), float16.
        quantized_weight: w, (N, K), int8, contiguous; N and K multiples of 16.
        weight_scale: $s_w$, (N); float32, or packed as int64.
        bias, x_offset: reserved.
        x_scale: s, (M), or (1) or () for "pertensor", which needs it; float32, beside packed scales float16. None takes
            it from the rows: $\max |x \cdot smooth| / 127$.
        smooth_scale: (K), float16.
        quant_mode: "pertoken" or "pertensor".

    Returns:
        y of shape (M, N), float16.

    Constraints:
        Atlas inference series.
    """
    q, scale = _quantized(x, x_scale, smooth_scale)
    y = int_product(q, quantized_weight.t()).float()
    return (y * scale_of(weight_scale) * scale).to(x.dtype)


@npu_quant_matmul_dequant.check
def _(x, quantized_weight, weight_scale, bias, x_scale, x_offset, smooth_scale, quant_mode):
    must.ndim("quantized_weight", quantized_weight, 2)
    _check(x, quantized_weight, weight_scale, bias, x_scale, x_offset, smooth_scale, quant_mode)


@npu_op(
    "npu_quant_grouped_matmul_dequant(Tensor x, Tensor quantized_weight, Tensor weight_scale, "
    "Tensor group_list, *, Tensor? bias=None, Tensor? x_scale=None, Tensor? x_offset=None, "
    "Tensor? smooth_scale=None, str? quant_mode='pertoken') -> Tensor",
    product=True,
    chips=("310P",),
)
def npu_quant_grouped_matmul_dequant(
    x, quantized_weight, weight_scale, group_list, x_scale, smooth_scale
):
    """`npu_quant_matmul_dequant` for groups of rows, each with a weight of its own.

    Args:
        x: (M, K), float16.
        quantized_weight: (G, N, K), int8, contiguous; N and K multiples of 16.
        weight_scale: (G, N); float32, or packed as int64.
        group_list: (G) int64, where each group of rows ends; the last one is M.
        bias, x_offset, x_scale, smooth_scale, quant_mode: as for `npu_quant_matmul_dequant`.

    Returns:
        y of shape (M, N), float16.

    Constraints:
        Atlas inference series.
    """
    q, scale = _quantized(x, x_scale, smooth_scale)
    y = x.new_zeros(x.shape[0], quantized_weight.shape[1], dtype=torch.float32)
    count = quantized_weight.shape[0]
    name = "npu_quant_grouped_matmul_dequant"
    for group in _groups.read(name, group_list, _groups.ENDS, count, x.shape[0], exact=False):
        part = slice(group.start, group.start + group.size)
        product = int_product(q[part], quantized_weight[group.weight].t()).float()
        y[part] = product * scale_of(weight_scale[group.weight])
    return (y * scale).to(x.dtype)


@npu_quant_grouped_matmul_dequant.meta
def _(x, weight_scale):
    return x.new_empty(x.shape[0], weight_scale.shape[1])


@npu_quant_grouped_matmul_dequant.check
def _(
    x, quantized_weight, weight_scale, group_list, bias, x_scale, x_offset, smooth_scale, quant_mode
):
    must.ndim("quantized_weight", quantized_weight, 3)
    _check(x, quantized_weight, weight_scale, bias, x_scale, x_offset, smooth_scale, quant_mode)
    must.dtype("group_list", group_list, torch.int64)
    must.shape("group_list", group_list, (quantized_weight.shape[0],))


def _ints(make, *shape):
    return make(*shape, dtype=torch.int8, low=-9, high=9)


npu_quant_matmul_dequant.samples = [
    Sample(lambda make: (make(4, 16, dtype=torch.float16), _ints(make, 32, 16), make(32))),
    Sample(
        lambda make: (make(4, 16, dtype=torch.float16), _ints(make, 32, 16), make(32)),
        lambda make: {
            "x_scale": make(1, low=0.01, high=0.02),
            "smooth_scale": make(16, dtype=torch.float16),
            "quant_mode": "pertensor",
        },
    ),
]
npu_quant_grouped_matmul_dequant.samples = [
    Sample(
        lambda make: (
            make(4, 16, dtype=torch.float16),
            _ints(make, 2, 32, 16),
            make(2, 32),
            make(2, dtype=torch.int64, low=4, high=5),
        )
    ),
    Sample(
        lambda make: (
            make(4, 16, dtype=torch.float16),
            _ints(make, 2, 32, 16),
            make(2, 32),
            make(2, dtype=torch.int64, low=4, high=5),
        ),
        lambda make: {
            "x_scale": make(4, low=0.01, high=0.02),
            "smooth_scale": make(16, dtype=torch.float16),
        },
    ),
]
