"""npu_quantize: static quantization with given scales and zero points."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_BYTES = {"int8": torch.int8, "uint8": torch.uint8, "int4": torch.int8}


def _element_axis(x: torch.Tensor, axis: int, div_mode: bool) -> int:
    """The axis along which scales differ; with multiplied scales it is one of the last two."""
    if div_mode:
        return axis % x.dim() if x.dim() else 0
    return x.dim() - 2 if axis == -2 else x.dim() - 1


def _along(factor: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Scales or zero points, ready to broadcast against x."""
    if factor.dim() == x.dim() and factor.dim() > 1:
        return wide(factor)
    shape = [1] * x.dim()
    if factor.numel() != 1:
        shape[axis] = factor.numel()
    return wide(factor).reshape(shape)


def _check_factor(name: str, factor: torch.Tensor, x: torch.Tensor, axis: int) -> None:
    size = x.shape[axis] if x.dim() else 1
    if factor.dim() == 1:
        expected = f"of shape (1) or ({size}), the size of dimension {axis} of 'self'"
        fits = factor.shape[0] in (1, size)
    else:
        expected = f"of shape (1), ({size}) or 1 in every dimension of 'self' but dimension {axis}"
        fits = factor.dim() == x.dim() and all(
            have == 1 or (i == axis and have == size) for i, have in enumerate(factor.shape)
        )
    must.hold(fits, name, expected, tuple(factor.shape), ErrCode.PARAM)


@npu_op(
    "npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, int dtype, int axis=1, "
    "bool div_mode=True) -> Tensor"
)
def npu_quantize(self, scales, zero_points, dtype, axis, div_mode):
    r"""Quantizes a tensor with given scales and zero points.

    $$ y = \mathrm{round}(x / scales + zero\_points) \quad (div\_mode = True) $$
    $$ y = \mathrm{round}(x \cdot scales + zero\_points) \quad (div\_mode = False) $$

    Halves round to even, results saturate, NaN becomes 0.

    Args:
        self: the input x; float32, float16 or (not on the Atlas inference series) bfloat16.
        scales: one value, or one for each index of `axis`: one dimension, or as many as `self` with 1 elsewhere.
            Divided: float32, float16 or bfloat16. Multiplied: the dtype of `self`; any of them for float32.
        zero_points: as many as `scales`, or None. Divided: int8, uint8, int32 or bfloat16, on Ascend950 also float32;
            bfloat16 for all three or for neither scales nor points. Multiplied: the dtype and shape of `scales`.
        dtype: divided: qint8, quint8 or int32 (or int8, uint8, qint32). Multiplied: qint8 or quint4x2.
        axis: the dimension whose indices have scales of their own. Multiplied: -2 is the last but one dimension,
            anything greater is the last.
        div_mode: whether scales divide or multiply.

    Returns:
        The shape of `self` in the chosen type; for quint4x2 an int32 tensor whose last dimension is an eighth, each
        element holding eight int4, the first in the lowest bits.

    Constraints:
        quint4x2 needs a last dimension divisible by 8; neither it nor `axis=-2` with multiplied scales exists on the
        Atlas inference series. Ascend950 also writes float8_e4m3fn, float8_e5m2 and hifloat8.
    """
    axis = _element_axis(self, axis, div_mode)
    scale = _along(scales, self, axis)
    y = wide(self) / scale if div_mode else wide(self) * scale
    if zero_points is not None:
        y = y + _along(zero_points, self, axis)
    return _formats.encode(y, _formats.chosen(dtype))


@npu_quantize.check
def _(self, scales, zero_points, dtype, axis, div_mode):
    old = _chip.on_310p()
    floats = _FLOATS[:2] if old else _FLOATS
    must.dtype("self", self, *floats)
    if div_mode:
        _formats.check("dtype", dtype, *_chip.formats("int8", "uint8", "int32"))
        must.dtype("scales", scales, *floats)
        wider = (torch.float32,) if _chip.on_950() else ()
        points = (torch.int8, torch.uint8, torch.int32, *wider, *floats[2:])
        must.dtype("zero_points", zero_points, *points)
        given = [t for t in (scales, zero_points) if t is not None]
        if any(t.dtype == torch.bfloat16 for t in given):
            must.dtype("self", self, torch.bfloat16)
            must.dtype("scales", scales, torch.bfloat16)
            must.dtype("zero_points", zero_points, torch.bfloat16)
        if scales.numel() != 1:
            inside = -self.dim() <= axis < self.dim()
            must.hold(inside, "axis", f"in [{-self.dim()}, {self.dim()})", axis)
    else:
        _formats.check("dtype", dtype, *_chip.formats("int8", *(() if old else ("int4",))))
        must.dtype("scales", scales, *(floats if self.dtype == torch.float32 else (self.dtype,)))
        if zero_points is not None:
            must.same_dtype("zero_points", zero_points, "scales", scales)
            must.shape("zero_points", zero_points, tuple(scales.shape))
        must.hold(self.dim() > 0, "self", "a tensor of at least 1 dimension", "()", ErrCode.PARAM)
        low = -1 if old else -2
        must.hold(low <= axis, "axis", f"{low} or greater", axis)
        must.hold(axis != -2 or self.dim() > 1, "axis", "-1 for 1 dimension", axis)
    axis = _element_axis(self, axis, div_mode)
    _check_factor("scales", scales, self, axis)
    if zero_points is not None:
        _check_factor("zero_points", zero_points, self, axis)
        same = zero_points.numel() == scales.numel()
        expected = f"of as many elements as 'scales' ({scales.numel()})"
        must.hold(same, "zero_points", expected, zero_points.numel(), ErrCode.PARAM)
    _formats.check_packing("self", self, _formats.chosen(dtype))


@npu_quantize.native
def _(self, scales, zero_points, dtype, axis, div_mode):
    name = _formats.chosen(dtype)
    plain = name in _BYTES and floats(self, scales)
    if not plain or (zero_points is not None and zero_points.dtype == torch.float64):
        return NotImplemented
    axis = _element_axis(self, axis, div_mode)
    return torch.ops.softnpu.quantize(
        self, scales, zero_points, axis, div_mode, _BYTES[name], name == "int4"
    )


npu_quantize.samples = [
    Sample(lambda make: (make(4, 6), make(6, low=0.01, high=0.1), None, torch.qint8)),
    Sample(
        lambda make: (
            make(4, 6, 2),
            make(4, low=0.01, high=0.1),
            make(4, dtype=torch.int32, low=0, high=9),
            torch.quint8,
        ),
        {"axis": 0},
    ),
    Sample(
        lambda make: (
            make(3, 16, dtype=torch.float16),
            make(1, dtype=torch.float16, low=1, high=5),
            make(1, dtype=torch.float16),
            torch.quint4x2,
        ),
        {"axis": -1, "div_mode": False},
    ),
    Sample(
        lambda make: (
            make(2, 4, 8, dtype=torch.bfloat16),
            make(1, 4, 1, dtype=torch.bfloat16, low=9, high=90),
            None,
            torch.qint8,
        ),
        {"axis": -2, "div_mode": False},
    ),
]
