"""What npu_quant_matmul asks of its arguments: int8, int4, by groups or blocks, mixed.

From CANN's quant_matmul_checker.cpp and aclnn_quant_matmul_v5.cpp, and the tiling's limit of the inner sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import FLOAT8, is_transposed, matrix_shape
from torch_npu.ops._shared._packing import PER_WORD
from torch_npu.ops._shared._scales import PACKED

#: the most values in the contiguous dimension of x1 and x2, and the largest K of the mixed form
_LIMIT, _MIXED_DEPTH = 65535, 29576
#: depths of a group of int4, and sizes of a block of 8-bit types
GROUP, BLOCK = 256, 128
_F16, _BF16, _F32 = torch.float16, torch.bfloat16, torch.float32


def _older() -> bool:
    return chips.current().family == "310P"


def _depth(x1: torch.Tensor) -> int:
    return x1.shape[-1] * (PER_WORD if x1.dtype == torch.int32 else 1)


def by_groups(x1: torch.Tensor, x2: torch.Tensor, scale: torch.Tensor) -> bool:
    """Whether the scale has a row for each group of K; a packed (1, N) has not."""
    mixed = x1.dtype == torch.int8 and x2.dtype == torch.int32
    plain = scale.dim() == 2 and scale.shape[0] == 1 and scale.dtype in PACKED
    return mixed or (scale.dim() >= 2 and scale.dim() == x2.dim() and not plain)


def matrices(x1: torch.Tensor, x2: torch.Tensor) -> None:
    """Types, ranks and sizes of the two factors."""
    small = () if _older() else (torch.int32,)
    floats = FLOAT8 if chips.current().family == "A5" else ()
    must.dtype("x1", x1, torch.int8, *small, *floats)
    must.ndim("x1", x1, 2, 6)
    if x1.dtype == torch.int8:
        must.dtype("x2", x2, torch.int8, *small)
    elif x1.dtype in FLOAT8:
        must.dtype("x2", x2, *FLOAT8)
    else:
        must.same_dtype("x2", x2, "x1", x1)
    packed = x2.dtype == torch.int32
    must.ndim("x2", x2, 2, 2 if packed else 6)
    if x1.dtype == torch.int32:
        must.hold(x1.is_contiguous(), "x1", "contiguous where it carries int4", x1.stride())
    if packed:
        plain = x2.is_contiguous() or is_transposed(x2)
        must.hold(plain, "x2", "contiguous or the transpose of a contiguous matrix", x2.stride())
    depth, rows = _depth(x1), matrix_shape(x2)[0]
    must.hold(rows == depth, "x2", f"of K {depth}, as 'x1'", rows)
    _broadcast(x1.shape[:-2], x2.shape[:-2])


def inner_sizes(
    x1: torch.Tensor, x2: torch.Tensor, scale: torch.Tensor, pertoken: torch.Tensor | None
) -> None:
    """The contiguous dimensions are limited, but on Ascend950, and on A2 and A3 for int8 with a scale for each row."""
    family = chips.current().family
    rows = pertoken is not None and pertoken.dim() == scale.dim() == 1
    free = rows and x1.dtype == x2.dtype == torch.int8 and scale.dtype in (_F32, _BF16)
    if family == "A5" or (family in ("A2", "A3") and free):
        return
    for name, matrix, shape in (
        ("x1", x1, (x1.shape[-2], _depth(x1))), ("x2", x2, matrix_shape(x2))
    ):  # fmt: skip
        size = shape[0 if is_transposed(matrix) else 1]
        must.hold(size <= _LIMIT, name, f"of at most {_LIMIT} in its contiguous dimension", size)


def _broadcast(left: Sequence[int], right: Sequence[int]) -> None:
    pairs = zip(reversed(left), reversed(right), strict=False)
    fits = all(a == b or a == 1 or b == 1 for a, b in pairs)
    expected = f"of batch dimensions that broadcast with {tuple(left)}"
    must.hold(fits, "x2", expected, tuple(right))


def output(x1: torch.Tensor, dtype: torch.dtype | int) -> None:
    """The result types of the chip."""
    allowed: tuple[torch.dtype, ...] = (torch.int8, _F16)
    if not _older():
        allowed += (_BF16, torch.int32)
    if x1.dtype in FLOAT8:
        allowed = (_F16, _BF16, _F32)
    must.hold(dtype in allowed, "output_dtype", must.one_of(allowed), dtype)


def scales(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    pertoken: torch.Tensor | None,
    dtype: torch.dtype | int,
) -> None:
    """Scales by tensor, column and row."""
    columns = matrix_shape(x2)[1]
    must.dtype("scale", scale, _F32, *PACKED, *(() if _older() else (_BF16,)))
    shapes = [(1,), (columns,), (1, columns)][: 3 if scale.dtype in PACKED else 2]
    fits = tuple(scale.shape) in shapes
    must.hold(fits, "scale", "of shape " + must.one_of(shapes), tuple(scale.shape))
    needs: dict[torch.dtype | int, tuple[torch.dtype, ...]]
    needs = {torch.int8: (_F32, *PACKED), _BF16: (_F32, _BF16), torch.int32: (_F32, _BF16)}
    if chips.current().family == "A5" and pertoken is None:
        needs[_BF16] += PACKED
    needs[_F16] = (_F32,) if pertoken is not None else (_F32, *PACKED)
    allowed = needs.get(dtype, (_F32, *PACKED)) if x1.dtype not in FLOAT8 else (_F32, *PACKED)
    fits = scale.dtype in allowed
    must.hold(fits, "scale", f"of dtype {must.one_of(allowed)} for {dtype} results", scale.dtype)
    if pertoken is not None:
        if _older():  # aclnn_quant_matmul_v4, CheckDtypeValidOnOnlyL0c2ubPertoken
            must.hold(dtype == _F16, "output_dtype", "torch.float16 with 'pertoken_scale'", dtype)
            must.shape("scale", scale, (columns,))
        must.dtype("pertoken_scale", pertoken, _F32)
        sizes = (1, x1.shape[-2]) if x1.dtype in FLOAT8 else (x1.shape[-2],)
        fits = pertoken.dim() == 1 and pertoken.shape[0] in sizes
        must.hold(fits, "pertoken_scale", f"of shape ({x1.shape[-2]},)", tuple(pertoken.shape))
        fits = dtype in (_F16, _BF16) or x1.dtype in FLOAT8
        must.hold(fits, "pertoken_scale", "None for int8 and int32 results", tuple(pertoken.shape))
    elif x1.dtype == torch.int32:
        must.hold(
            dtype == _F16, "output_dtype", "torch.float16 for int4 without 'pertoken_scale'", dtype
        )
    if offset is not None:
        must.hold(dtype == torch.int8, "offset", f"None for {dtype} results", tuple(offset.shape))
        must.dtype("offset", offset, _F32)
        fits = tuple(offset.shape) in [(1,), (columns,)]
        must.hold(fits, "offset", f"of shape (1,) or ({columns},)", tuple(offset.shape))


def group_scales(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    pertoken: torch.Tensor | None,
    dtype: torch.dtype | int,
    sizes: Sequence[int] | None,
) -> None:
    """Scales by groups of K: int4 (with an offset), 8-bit types by blocks, and the mixed form."""
    allowed = (_F16, _BF16, _F32) if x1.dtype in FLOAT8 else (_F16, _BF16)
    must.hold(dtype in allowed, "output_dtype", must.one_of(allowed) + " by groups", dtype)
    must.present("pertoken_scale", pertoken, "by groups")
    must.dtype("pertoken_scale", pertoken, _F32)
    if x2.dtype != torch.int32:
        must.hold(offset is None, "offset", "None by blocks", "a tensor")
        _blocks(x1, x2, scale, pertoken, sizes)
    elif x1.dtype == torch.int32:
        _int4_groups(x1, x2, scale, offset, pertoken, sizes)
    else:
        _mixed(x1, x2, scale, offset, pertoken, sizes)


def _blocks(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    pertoken: torch.Tensor | None,
    sizes: Sequence[int] | None,
) -> None:
    """A scale for each 128 x 128 block of x2, and for each row or 128 rows of 128 depths of x1."""
    for size, allowed in zip(sizes or (), ((0, 1, BLOCK), (0, BLOCK), (0, BLOCK)), strict=False):
        must.hold(size in allowed, "group_sizes", f"of 1 or {BLOCK}, {BLOCK} and {BLOCK}", sizes)
    must.dtype("scale", scale, _F32)
    depth, columns = matrix_shape(x2)
    blocks = -(-depth // BLOCK)
    must.shape("scale", scale, (*x2.shape[:-2], blocks, -(-columns // BLOCK)))
    rows = x1.shape[-2]
    tall = -(-rows // BLOCK)
    given = sizes[0] if sizes else 0
    options = {0: (rows, tall), 1: (rows,)}.get(given, (tall,))
    shapes = [(*x1.shape[:-2], count, blocks) for count in dict.fromkeys(options)]
    assert pertoken is not None
    fits = tuple(pertoken.shape) in shapes
    must.hold(fits, "pertoken_scale", "of shape " + must.one_of(shapes), tuple(pertoken.shape))


def _int4_groups(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    pertoken: torch.Tensor | None,
    sizes: Sequence[int] | None,
) -> None:
    """int4 with a scale and an offset for each 256 depths of a column."""
    must.present("offset", offset, "where 'scale' has 2 dimensions")
    must.dtype("offset", offset, _F16)
    must.dtype("scale", scale, _F32)
    depth, columns = matrix_shape(x2)
    must.hold(depth % 1024 == 0, "x1", "of a K that is a multiple of 1024 by groups", depth)
    must.hold(columns % 256 == 0, "x2", "of an N that is a multiple of 256 by groups", columns)
    must.hold(not sizes or sizes[2] in (0, GROUP), "group_sizes", f"of {GROUP} depths", sizes)
    must.shape("scale", scale, (depth // GROUP, columns))
    must.shape("offset", offset, tuple(scale.shape))
    must.shape("pertoken_scale", pertoken, (x1.shape[-2], 1))


def _mixed(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    pertoken: torch.Tensor | None,
    sizes: Sequence[int] | None,
) -> None:
    """int8 with int4: packed scales by column, or by column and 256 depths."""
    must.ndim("x1", x1, 2)
    must.dtype("scale", scale, *PACKED)
    depth, columns = matrix_shape(x2)
    must.hold(depth <= _MIXED_DEPTH, "x1", f"of a K up to {_MIXED_DEPTH} beside int4", depth)
    must.present("offset", offset, "for an int8 'x1' with an int4 'x2'")
    must.dtype("offset", offset, _F32)
    must.shape("offset", offset, (columns,))
    if scale.dim() == 1:
        must.hold(not any(sizes or ()), "group_sizes", "None for a scale of 1 dimension", sizes)
        must.shape("scale", scale, (columns,))
        must.shape("pertoken_scale", pertoken, (x1.shape[0],))
        return
    fits = list(sizes or ()) == [0, 0, GROUP]
    must.hold(fits, "group_sizes", f"[0, 0, {GROUP}] for a scale of 2 dimensions", sizes)
    must.hold(depth % GROUP == 0, "x1", f"of a K that is a multiple of {GROUP}", depth)
    must.shape("scale", scale, (depth // GROUP, columns))
    must.shape("pertoken_scale", pertoken, (x1.shape[0], 1))


def block_sizes(
    x1: torch.Tensor,
    x2: torch.Tensor,
    pertoken: torch.Tensor | None,
    sizes: Sequence[int] | None,
) -> Sequence[int]:
    """How many rows, columns and depths share a scale, where the shapes say it."""
    if x2.dtype == torch.int32:
        return sizes or (0, 0, 0)
    assert pertoken is not None
    return (1 if pertoken.shape[-2] == x1.shape[-2] else BLOCK), BLOCK, BLOCK


def group_sizes(sizes: Sequence[int] | None) -> None:
    """How many rows, columns and depths share a scale: three sizes, 0 for what the shapes say."""
    if sizes:
        must.hold(len(sizes) == 3, "group_sizes", "[group_m, group_n, group_k]", list(sizes))
        for size in sizes:
            must.hold(0 <= size <= 65535, "group_sizes", "of sizes from 0 to 65535", size)


def bias(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    values: torch.Tensor | None,
    pertoken: torch.Tensor | None,
    dtype: torch.dtype | int,
) -> None:
    """The bias: its type by the result's, its shape by the result's rank."""
    if values is None:
        return
    mixed = x1.dtype == torch.int8 and x2.dtype == torch.int32
    must.hold(not mixed, "bias", "None for an int8 'x1' with an int4 'x2'", tuple(values.shape))
    floats: tuple[torch.dtype, ...] = ()
    if dtype == _BF16:
        floats = (_BF16, _F32)
    elif pertoken is not None:
        floats = (_F16, _F32)
    integers = () if x1.dtype in FLOAT8 else (torch.int32,)
    floats = (_F32,) if x1.dtype in FLOAT8 else floats
    if scale.dtype in PACKED:
        floats = (_F32,) if x1.dtype in FLOAT8 else ()
    grouped = by_groups(x1, x2, scale)
    must.hold(not grouped, "bias", "None by groups and blocks", tuple(values.shape))
    allowed = (*integers, *(() if _older() else floats))
    fits = values.dtype in allowed
    must.hold(fits, "bias", f"of dtype {must.one_of(allowed)} for {dtype} results", values.dtype)
    columns = matrix_shape(x2)[1]
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    shapes: list[tuple[int, ...]] = [(columns,)]
    if len(batch) == 1:
        shapes.append((batch[0], 1, columns))
    fits = tuple(values.shape) in shapes
    must.hold(fits, "bias", "of shape " + must.one_of(shapes), tuple(values.shape))


def microscaled(
    left: Sequence[int],
    right: Sequence[int],
    offset: torch.Tensor | None,
    values: torch.Tensor | None,
    dtype: torch.dtype | int,
) -> None:
    """Sizes, result and bias of the microscaling form; the shapes are in values."""
    for name, shape in (("x1", left), ("x2", right)):
        must.hold(2 <= len(shape) <= 6, name, "a tensor of 2 to 6 dimensions", tuple(shape))
    must.hold(right[-2] == left[-1], "x2", f"of K {left[-1]}, as 'x1'", right[-2])
    _broadcast(left[:-2], right[:-2])
    must.hold(dtype in (_F16, _BF16, _F32), "output_dtype", must.one_of((_F16, _BF16, _F32)), dtype)
    must.hold(offset is None, "offset", "None in the microscaling form", "a tensor")
    must.dtype("bias", values, _F32)
    if values is not None:
        batch = torch.broadcast_shapes(left[:-2], right[:-2])
        shapes = [(right[-1],), *([(batch[0], 1, right[-1])] if len(batch) == 1 else [])]
        fits = tuple(values.shape) in shapes
        must.hold(fits, "bias", "of shape " + must.one_of(shapes), tuple(values.shape))


def microscales(
    left: Sequence[int],
    right: Sequence[int],
    scale: torch.Tensor,
    scale_code: int | None,
    pertoken: torch.Tensor | None,
    pertoken_code: int | None,
    sizes: Sequence[int] | None,
) -> None:
    """The two scales of the microscaling form, by pairs of blocks."""
    blocks = _mx.pairs(left[-1])
    wanted = (*left[:-1], blocks, _mx.PAIR)
    _mx.check_scale("pertoken_scale", "pertoken_scale_dtype", pertoken, pertoken_code, wanted)
    wanted = (*right[:-2], blocks, right[-1], _mx.PAIR)
    _mx.check_scale("scale", "scale_dtype", scale, scale_code, wanted)
    fits = not sizes or list(sizes) in ([1, 1, _mx.BLOCK], [0, 0, _mx.BLOCK], [0, 0, 0])
    must.hold(fits, "group_sizes", f"None or [1, 1, {_mx.BLOCK}] in the microscaling form", sizes)
