"""Quantized products of groups of rows, each with the weight of its expert, in fp32: what fusions of them share.

| form | x | weight | scales of the weight | scales of x |
|---|---|---|---|---|
| a8w8 | int8 | int8 | (E, N) | (M) |
| a8w4 | int8 | int32, eight int4 each | packed, (E, N) or (E, G, N) | (M) |
| a4w4 | int32, eight int4 each | the same | packed or float32, (E, N) | (M) |
| float8 | 8-bit floats, hifloat8 | the same | (E, N) | (M) |
| mx | 8-bit or 4-bit floats | the same | bytes, (E, ceil(K / 64), N, 2) | bytes, (M, ceil(K / 64), 2) |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import FLOAT8, is_transposed, matrix_shape, restored, unpack_matrix
from torch_npu.ops._shared._packing import PER_WORD, unpack_int4
from torch_npu.ops._shared._scales import PACKED, scale_of
from torch_npu.ops.matmul import _groups
from torch_npu.ops.matmul.npu_quant_matmul import A8W4_SHIFT, block_product, exact_product

#: the most groups that a list may have
GROUPS = 1024


def _high(code: int | None) -> bool:
    return code is not None and _dtypes.name(code) == "hifloat8"


@dataclass
class Rows:
    """The operands, and how a group of rows is multiplied."""

    x: torch.Tensor
    weight: torch.Tensor
    scale: torch.Tensor
    per_token: torch.Tensor | None
    assist: torch.Tensor | None = None
    x_dtype: int | None = None
    weight_dtype: int | None = None
    mx: bool = False
    offset: torch.Tensor | None = (
        None  # of int4 weights, (E, 1, N): what each of them lacks, in units of the result
    )

    @property
    def form(self) -> str:
        if self.mx:
            return "mx"
        if self.weight.dtype == torch.int32:
            return "a4w4" if self.x.dtype == torch.int32 else "a8w4"
        return (
            "a8w8" if self.weight.dtype == torch.int8 and not _high(self.weight_dtype) else "float8"
        )

    @property
    def columns(self) -> int:
        if self.mx:
            return _mx.shape(self.weight, self.weight_dtype)[-1]
        return matrix_shape(self.weight)[1]

    def product(self, group: _groups.Group) -> torch.Tensor:
        """The rows of a group times the weight of its expert, scaled."""
        part = slice(group.start, group.start + group.size)
        x, weight = self.x[part], self.weight[group.weight]
        tokens = None if self.per_token is None else self.per_token[part]
        if self.mx:
            assert tokens is not None
            left = _mx.left(x, self.x_dtype, tokens)
            return torch.matmul(
                left, _mx.right(weight, self.weight_dtype, self._powers(group.weight))
            )
        scale = scale_of(self.scale[group.weight])
        factor = 1.0 if tokens is None else tokens.float().reshape(-1, 1)
        if self.form == "a8w4":
            shifted = x.to(torch.int16) - A8W4_SHIFT
            matrix = unpack_matrix(weight)
            y = block_product(shifted, matrix, None, scale.reshape(-1, matrix.shape[-1]))
            y = y if self.assist is None else y + self.assist[group.weight].float()
            if self.offset is not None:
                y = y + x.sum(1, keepdim=True).float() * self.offset[group.weight]
            return y * factor
        if self.form == "a4w4":
            x, weight = unpack_int4(x), unpack_matrix(weight)
        if _high(self.x_dtype):
            x, weight = restored(x, self.x_dtype), restored(weight, self.weight_dtype)
        return exact_product(x, weight).float() * scale.reshape(-1) * factor

    def _powers(self, expert: int) -> torch.Tensor:
        """Scales as (ceil(K / 64), N, 2), whichever way they lie."""
        scale, depth = self.scale[expert], _mx.shape(self.x, self.x_dtype)[-1]
        usual = scale.shape == (_mx.pairs(depth), self.columns, _mx.PAIR)
        return scale if usual else scale.transpose(0, 1)

    def run(
        self,
        operator: str,
        group_list: torch.Tensor,
        kind: int,
        finish: Callable[[_groups.Group, torch.Tensor], None],
    ) -> None:
        """Calls `finish` with each group that has rows and its product."""
        experts = self.weight.shape[0]
        rows = self.x.shape[0]
        for group in _groups.read(operator, group_list, kind, experts, rows, exact=False):
            if group.size:
                finish(group, self.product(group))


def check(
    rows: Rows, names: dict[str, str], formats: Sequence[str], *, single: bool = False
) -> None:
    """Dtypes and shapes of the operands; `names` are the operator's words for weight, scale and scales of x.

    `single` asks for scales of one group of depths in three dimensions, (E, 1, N).
    """
    x, weight = rows.x, rows.weight
    must.ndim("x", x, 2)
    must.ndim(names["weight"], weight, 3)
    form = rows.form
    known = f"of a form among {must.one_of(formats)}"
    must.hold(
        form in formats,
        names["weight"],
        known,
        f"{form} ({x.dtype} by {weight.dtype})",
        ErrCode.TYPE,
    )
    experts = weight.shape[0]
    if form == "mx":
        _check_mx(rows, names)
        return
    eights = (torch.uint8, torch.int8, *FLOAT8) if _high(rows.x_dtype) else FLOAT8
    lefts = {"a8w8": (torch.int8,), "a8w4": (torch.int8,), "a4w4": (torch.int32,), "float8": eights}
    must.dtype("x", x, *lefts[form])
    depth = x.shape[1] * (PER_WORD if x.dtype == torch.int32 else 1)
    height, columns = matrix_shape(weight)
    must.hold(height == depth, names["weight"], f"of depth {depth}, as 'x'", height, ErrCode.PARAM)
    scale, floats = rows.scale, (torch.float32, torch.bfloat16, torch.float16)
    kinds = {"a8w4": PACKED, "a4w4": (torch.float32, *PACKED), "float8": floats[:2]}
    must.dtype(names["scale"], scale, *kinds.get(form, floats))
    plain = (experts, 1, columns) if single else (experts, columns)
    grouped = form == "a8w4" and not single and scale.dim() == 3
    fits = tuple(scale.shape) == plain or (
        grouped and tuple(scale.shape[::2]) == (experts, columns)
    )
    expected = f"of shape {plain}" + (
        f" or ({experts}, G, {columns})" if form == "a8w4" and not single else ""
    )
    must.hold(fits, names["scale"], expected, tuple(scale.shape), ErrCode.PARAM)
    if grouped:
        groups = scale.shape[1]
        even = groups > 0 and depth % groups == 0
        must.hold(even, names["scale"], f"of groups that divide {depth}", groups, ErrCode.PARAM)
    must.dtype(names["per_token"], rows.per_token, torch.float32)
    must.shape(names["per_token"], rows.per_token, (x.shape[0],))


def _check_mx(rows: Rows, names: dict[str, str]) -> None:
    _mx.check_matrix("x", "x_dtype", rows.x, rows.x_dtype)
    _mx.check_matrix(names["weight"], names["weight_dtype"], rows.weight, rows.weight_dtype)
    count, depth = _mx.shape(rows.x, rows.x_dtype)
    experts, height, columns = _mx.shape(rows.weight, rows.weight_dtype)
    must.hold(height == depth, names["weight"], f"of depth {depth}, as 'x'", height, ErrCode.PARAM)
    pairs = _mx.pairs(depth)
    allowed = [(experts, pairs, columns, 2)]
    if is_transposed(rows.weight):
        allowed.append((experts, columns, pairs, 2))
    bytes_ = (torch.uint8, torch.int8, torch.float8_e8m0fnu)
    must.dtype(names["scale"], rows.scale, *bytes_)
    fits = tuple(rows.scale.shape) in allowed
    expected = f"of shape {must.one_of(allowed)}"
    must.hold(fits, names["scale"], expected, tuple(rows.scale.shape), ErrCode.PARAM)
    must.dtype(names["per_token"], rows.per_token, *bytes_)
    must.shape(names["per_token"], rows.per_token, (count, pairs, 2))


def check_list(group_list: torch.Tensor, experts: int, *, fewer: bool = False) -> None:
    """An int64 list of one number for each expert, or with `fewer` for the first ones."""
    must.dtype("group_list", group_list, torch.int64)
    must.ndim("group_list", group_list, 1)
    count = group_list.shape[0]
    if fewer:
        expected = f"of at most {experts} numbers, the experts"
        must.hold(count <= experts, "group_list", expected, count, ErrCode.PARAM)
    else:
        must.shape("group_list", group_list, (experts,))
    must.hold(count <= GROUPS, "group_list", f"of at most {GROUPS} groups", count)
