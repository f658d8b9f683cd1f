"""npu_quant_conv2d: a convolution of integers or 8-bit floats, scaled back."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats
from torch_npu.ops._shared._gemm import restored
from torch_npu.ops._shared._scales import PACKED, scale_of

_OUTPUTS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _high(code):
    return code is not None and _dtypes.name(code) == "hifloat8"


def _out(size, kernel, stride, pad, dilation):
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


@npu_op(
    "npu_quant_conv2d(Tensor input, Tensor weight, Tensor scale, int[2] strides=1, int[2] pads=0, "
    "int[2] dilations=1, int groups=1, int offset_x=0, str round_mode='rint', "
    "int? output_dtype=None, Tensor? bias=None, Tensor? offset=None, int? input_dtype=None, "
    "int? weight_dtype=None) -> Tensor",
    product=True,
)
def npu_quant_conv2d(
    input,
    weight,
    scale,
    strides,
    pads,
    dilations,
    groups,
    offset_x,
    output_dtype,
    bias,
    input_dtype,
    weight_dtype,
):
    r"""A two-dimensional convolution of int8 (Ascend950: also 8-bit floats), scaled by channels.

    $$ y = (\mathrm{conv}(x, w) + bias) \cdot scale_c $$

    Sums of int8 are exact.

    Args:
        input: x, (N, C, H, W), int8; on Ascend950 also float8_e4m3fn, or bytes that `input_dtype` calls hifloat8.
        weight: w, (O, C / groups, KH, KW), likewise.
        scale: (O), before Ascend950 also (1): float32, or packed as int64.
        strides, pads, dilations, groups: as of `torch.nn.functional.conv2d`; both sides are padded alike.
        offset_x: what the padding holds, int8; 0 for 8-bit floats.
        round_mode: "rint"; "round" for hifloat8 results.
        output_dtype: float16; for 8-bit floats also bfloat16 and float32, for hifloat8 itself too. Required.
        bias: (O), int32 for int8, else float32.
        offset: not supported by upstream.
        input_dtype, weight_dtype: hifloat8 for such bytes, both or none.

    Returns:
        y, (N, O, H', W').
    """
    exact = input.dtype == torch.int8 and not _high(input_dtype)
    kind = torch.float64 if exact else torch.float32
    x = restored(input, input_dtype if _high(input_dtype) else None).to(kind)
    w = restored(weight, weight_dtype if _high(weight_dtype) else None).to(kind)
    x = torch.nn.functional.pad(x, (pads[1], pads[1], pads[0], pads[0]), value=float(offset_x))
    y = torch.nn.functional.conv2d(x, w, None, strides, 0, dilations, groups)
    if bias is not None:
        y = y + bias.to(kind).view(-1, 1, 1)
    y = y.float() * scale_of(scale).view(-1, 1, 1)
    name = _formats.chosen(output_dtype, "float16")
    return _formats.encode(y, name) if name == "hifloat8" else y.to(_OUTPUTS[name])


@npu_quant_conv2d.check
def _(
    input,
    weight,
    scale,
    strides,
    pads,
    dilations,
    groups,
    offset_x,
    round_mode,
    output_dtype,
    bias,
    offset,
    input_dtype,
    weight_dtype,
):
    new = _chip.on_950()
    same = (input_dtype is None) == (weight_dtype is None)
    must.hold(
        same, "weight_dtype", "given if and only if 'input_dtype' is", _dtypes.text(weight_dtype)
    )
    for name, code in (("input_dtype", input_dtype), ("weight_dtype", weight_dtype)):
        if code is not None:
            must.hold(
                new and _high(code), name, "None, or hifloat8 on Ascend950", _dtypes.text(code)
            )
    types = (torch.int8, torch.float8_e4m3fn) if new else (torch.int8,)
    must.dtype("input", input, *((torch.uint8, torch.int8) if input_dtype is not None else types))
    must.same_dtype("weight", weight, "input", input)
    must.ndim("input", input, 4)
    must.ndim("weight", weight, 4)
    must.hold(offset is None, "offset", "None", "a tensor", ErrCode.PARAM)
    for name, values, least in (
        ("strides", strides, 1),
        ("pads", pads, 0),
        ("dilations", dilations, 1),
    ):
        must.hold(len(values) == 2, name, "a list of 2 integers", list(values))
        must.hold(min(values) >= least, name, f"at least {least}", list(values))
    must.hold(groups >= 1, "groups", "positive", groups)
    out, depth = weight.shape[:2]
    fits = depth * groups == input.shape[1] and out % groups == 0
    must.hold(
        fits, "weight", f"of {input.shape[1]} / groups channels", tuple(weight.shape), ErrCode.PARAM
    )
    integers = input.dtype == torch.int8 and input_dtype is None
    must.hold(-128 <= offset_x <= 127, "offset_x", "in [-128, 127]", offset_x)
    must.hold(integers or offset_x == 0, "offset_x", "0 for 8-bit floats", offset_x)
    must.present("output_dtype", output_dtype, "always")
    outputs = (
        ("float16",) if integers else (*_OUTPUTS, *(["hifloat8"] if _high(input_dtype) else []))
    )
    _formats.check("output_dtype", output_dtype, *outputs)
    rounding = "round" if _formats.chosen(output_dtype) == "hifloat8" else "rint"
    must.choice("round_mode", round_mode, (rounding,))
    must.dtype("scale", scale, torch.float32, *PACKED)
    allowed = ((out,),) if new else ((1,), (out,))
    shape = tuple(scale.shape)
    must.hold(shape in allowed, "scale", f"of shape {must.one_of(allowed)}", shape, ErrCode.PARAM)
    must.shape("bias", bias, (out,))
    must.dtype("bias", bias, torch.int32 if integers else torch.float32)
    for place, axis in ((0, "H"), (1, "W")):
        args = (input.shape[2 + place], weight.shape[2 + place], strides[place], pads[place])
        size = _out(*args, dilations[place])
        must.hold(size > 0, "weight", f"small enough that {axis} of the result is positive", size)


npu_quant_conv2d.samples = [
    Sample(
        lambda make: (
            make(2, 4, 7, 6, dtype=torch.int8, low=-9, high=9),
            make(6, 4, 3, 2, dtype=torch.int8, low=-9, high=9),
            make(6, low=0, high=0.1),
        ),
        {"output_dtype": torch.float16},
    ),
    Sample(
        lambda make: (
            make(2, 4, 7, 6, dtype=torch.int8, low=-9, high=9),
            make(6, 2, 3, 2, dtype=torch.int8, low=-9, high=9),
            make(1, low=0, high=0.1),
        ),
        lambda make: {
            "strides": [2, 1],
            "pads": [1, 2],
            "dilations": [1, 2],
            "groups": 2,
            "offset_x": 3,
            "output_dtype": torch.float16,
            "bias": make(6, dtype=torch.int32, low=-99, high=99),
        },
    ),
]
