"""npu_weight_quant_preprocess: weights laid out for a product of float8 with float4."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.npu._format import Format
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _format_rules as rules
from torch_npu.ops._shared import _formats, _mx

_X = "float8_e4m3fn"
_WEIGHT = "float4_e2m1fn_x2"
_SCALE = "float8_e8m0fnu"


def _turned(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A copy with the dimensions `rows` and `rows + 1` the other way round in memory."""
    memory = tensor.transpose(rows, rows + 1).clone(memory_format=torch.contiguous_format)
    return memory.transpose(rows, rows + 1)


def _is_turned(tensor: torch.Tensor, rows: int) -> bool:
    return tensor.stride(rows + 1) == tensor.stride(rows) * tensor.shape[rows]


@npu_op(
    "npu_weight_quant_preprocess(Tensor weight, Tensor weight_scale, int x_dtype, int weight_dtype, "
    "int weight_scale_dtype, Tensor? weight_offset=None, Tensor? bias=None, int? x_scale_dtype=None, "
    "int? k_group_size=0) -> (Tensor, Tensor, Tensor, Tensor)",
    chips=("A5",),
    direct=True,
    compiled="device",
)
def npu_weight_quant_preprocess(weight, weight_scale, bias):
    """Weights of two 4-bit floats a byte in FRACTAL_NZ, for a product with 8-bit floats in microscaling.

    The values, shapes and strides stay; the weights get the format FRACTAL_NZ_C0_16 (50), the scales and the bias are
    copied.

    Args:
        weight: (K / 2, N) or (G, K / 2, N) of one-byte elements, two values in a byte along K: a transposed view, in
            memory (N, K / 2) or (G, N, K / 2); not empty.
        weight_scale: one-byte elements of shape (ceil(K / 64), N, 2), or (G, ceil(K / 64), N, 2): a transposed view,
            in memory (N, ceil(K / 64), 2) or (G, N, ceil(K / 64), 2).
        x_dtype: float8_e4m3fn, of what the weights will be multiplied with.
        weight_dtype: float4_e2m1fn_x2.
        weight_scale_dtype: float8_e8m0fnu.
        weight_offset: None.
        bias: (N) or (1, N), with groups (G, N); float16 or bfloat16, contiguous.
        x_scale_dtype: float8_e8m0fnu, has to be given.
        k_group_size: 32, has to be given.

    Returns:
        The weights, the scales, None, and the bias or None; each on a storage of its own.

    Constraints:
        Ascend950. Scales for half of the values, ceil(K / 128), are taken too: upstream's own test passes them.

    Differs from upstream: bytes keep their natural order.
    """
    rows = weight.dim() - 2
    memory = weight.transpose(rows, rows + 1)
    number = rules.permitted(Format.FRACTAL_NZ_C0_16)
    laid = rules.create(memory.shape, weight.dtype, weight.device, number, argument="weight")
    laid.copy_(memory)
    copied = None if bias is None else bias.clone()
    return laid.transpose(rows, rows + 1), _turned(weight_scale, rows), None, copied


@npu_weight_quant_preprocess.meta
def _(weight, weight_scale, bias):
    rows = weight.dim() - 2
    copied = None if bias is None else torch.empty_like(bias)
    return _turned(weight, rows), _turned(weight_scale, rows), None, copied


@npu_weight_quant_preprocess.check
def _(
    weight,
    weight_scale,
    x_dtype,
    weight_dtype,
    weight_scale_dtype,
    weight_offset,
    bias,
    x_scale_dtype,
    k_group_size,
):
    _formats.check("x_dtype", x_dtype, _X)
    _formats.check("weight_dtype", weight_dtype, _WEIGHT)
    _formats.check("weight_scale_dtype", weight_scale_dtype, _SCALE)
    _formats.check("x_scale_dtype", must.present("x_scale_dtype", x_scale_dtype, "always"), _SCALE)
    must.ndim("weight", weight, 2, 3)
    rows = weight.dim() - 2
    must.ndim("weight_scale", weight_scale, weight.dim() + 1)
    for name, tensor in (("weight", weight), ("weight_scale", weight_scale)):
        must.hold(
            tensor.dtype.itemsize == 1, name, "of one byte an element", tensor.dtype, ErrCode.TYPE
        )
        must.hold(tensor.numel() > 0, name, "not empty", tuple(tensor.shape))
        must.hold(
            _is_turned(tensor, rows),
            name,
            f"a transposed view: contiguous with dimensions {rows} and {rows + 1} exchanged",
            f"strides {tensor.stride()}",
        )
    must.hold(
        weight.stride(rows) == 1, "weight", "contiguous along K", f"strides {weight.stride()}"
    )
    *groups, packed, columns = weight.shape
    pairs = _mx.pairs(2 * packed)
    given = tuple(weight_scale.shape)
    must.hold(
        given in [(*groups, count, columns, _mx.PAIR) for count in (pairs, _mx.pairs(packed))],
        "weight_scale",
        f"of shape {(*groups, pairs, columns, _mx.PAIR)}",
        given,
    )
    must.unset("weight_offset", weight_offset)
    if bias is not None:
        must.dtype("bias", bias, torch.float16, torch.bfloat16)
        shapes = [(*groups, columns)] if groups else [(columns,), (1, columns)]
        must.hold(
            tuple(bias.shape) in shapes,
            "bias",
            "of shape " + " or ".join(map(str, shapes)),
            tuple(bias.shape),
        )
        must.hold(bias.is_contiguous(), "bias", "contiguous", f"strides {bias.stride()}")
    must.choice("k_group_size", k_group_size, (_mx.BLOCK,))


_TYPES = {
    "x_dtype": torch.float8_e4m3fn,
    "weight_dtype": _dtypes.CODES[_WEIGHT],
    "weight_scale_dtype": _dtypes.CODES[_SCALE],
    "x_scale_dtype": _dtypes.CODES[_SCALE],
    "k_group_size": _mx.BLOCK,
}


def _sample(make, groups, packed, columns):
    weight = make(*groups, columns, packed, dtype=torch.uint8, low=0, high=256)
    scale = make(*groups, columns, _mx.pairs(2 * packed), 2, dtype=torch.uint8, low=120, high=134)
    return weight.transpose(-1, -2), scale.transpose(-2, -3)


npu_weight_quant_preprocess.samples = [
    Sample(lambda make: _sample(make, (), 32, 24), _TYPES),
    Sample(
        lambda make: _sample(make, (2,), 40, 16),
        lambda make: _TYPES | {"bias": make(2, 16, dtype=torch.bfloat16)},
    ),
]
