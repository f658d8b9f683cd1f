"""npu_gelu_quant: GELU, then quantization by given scales or by scales from the data."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _dynamic, _formats

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@npu_op(
    "npu_gelu_quant(Tensor self, *, Tensor? input_scale=None, Tensor? input_offset=None, "
    "str approximate='none', str quant_mode='dynamic', int? dst_type=None, str round_mode='rint')"
    " -> (Tensor, Tensor)",
    chips=("A5",),
)
def npu_gelu_quant(self, input_scale, input_offset, approximate, quant_mode, dst_type, round_mode):
    r"""GELU of each element, quantized.

    $$ g = \mathrm{gelu}(x), \qquad y = \mathrm{round}(g \cdot scale + offset) \text{ (static)}, \qquad
       s = \frac{\max_{row} |g \cdot scale|}{DTYPE\_MAX},\; y = \mathrm{round}\left(\frac{g \cdot scale}{s}\right)
       \text{ (dynamic)} $$

    Args:
        self: x, 2 to 8 dimensions (static: 1 to 8); float16, bfloat16 or float32.
        input_scale: one element or one for each of the last dimension; the dtype of `self` or float32. Static
            quantization needs it.
        input_offset: of the shape and dtype of `input_scale`, with it; dynamic quantization does not read it.
        approximate: "none" (by erf) or "tanh".
        quant_mode: "dynamic" or "static".
        dst_type: int8 (the default), float8_e4m3fn, float8_e5m2 or hifloat8.
        round_mode: "rint"; "round" for hifloat8.

    Returns:
        y in the shape of `self`, and (dynamic) the scales in float32, `self.shape[:-1]`; else None.

    Constraints:
        Ascend950.
    """
    y = torch.nn.functional.gelu(wide(self), approximate=approximate)
    y = y if input_scale is None else y * wide(input_scale)
    name = _formats.chosen(dst_type)
    if quant_mode == "dynamic":
        return _dynamic.symmetric(y, name, mode=round_mode, order=_dynamic.QUOTIENT)
    y = y if input_offset is None else y + wide(input_offset)
    return _formats.encode(y, name, round_mode), None


@npu_gelu_quant.check
def _(self, input_scale, input_offset, approximate, quant_mode, dst_type, round_mode):
    must.dtype("self", self, *_FLOATS)
    must.choice("quant_mode", quant_mode, ("dynamic", "static"))
    must.choice("approximate", approximate, ("none", "tanh"))
    must.ndim("self", self, 2 if quant_mode == "dynamic" else 1, 8)
    _formats.check("dst_type", dst_type, *_chip.formats("int8"))
    high = _formats.chosen(dst_type) == "hifloat8"
    must.choice("round_mode", round_mode, ("round",) if high else ("rint",))
    if quant_mode == "static":
        must.present("input_scale", input_scale, "for static quantization")
    elif input_offset is not None:
        must.present("input_scale", input_scale, "with 'input_offset'")
    if input_scale is not None:
        must.dtype("input_scale", input_scale, *dict.fromkeys((self.dtype, torch.float32)))
        fits = tuple(input_scale.shape) in ((1,), (self.shape[-1],))
        expected = f"of shape (1,) or ({self.shape[-1]},)"
        must.hold(fits, "input_scale", expected, tuple(input_scale.shape), ErrCode.PARAM)
    if input_offset is not None:
        must.same_dtype("input_offset", input_offset, "input_scale", input_scale)
        must.shape("input_offset", input_offset, tuple(input_scale.shape))


npu_gelu_quant.samples = [
    Sample(lambda make: (make(3, 16, dtype=torch.float16, low=-3, high=3),)),
    Sample(
        lambda make: (make(2, 3, 8, low=-3, high=3),),
        lambda make: {
            "input_scale": make(8, low=10, high=40),
            "input_offset": make(8, low=-9, high=9),
            "quant_mode": "static",
            "approximate": "tanh",
        },
    ),
]
