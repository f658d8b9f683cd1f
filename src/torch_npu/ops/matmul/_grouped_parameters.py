"""What npu_grouped_matmul asks of bias, scales and result, by the form that x and weight make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import matrix_shape
from torch_npu.ops._shared._scales import PACKED
from torch_npu.ops.matmul._grouped import Forms
from torch_npu.ops.matmul._grouped_float8 import DEPTHS, ROWS, tiled
from torch_npu.ops.matmul._grouped_rules import form_of, newest

_F16, _BF16, _F32, _I8, _I32 = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int8,
    torch.int32,
)
Tensors = Sequence[torch.Tensor] | None


def _every(name: str, values: Tensors, count: int, *types: Any) -> None:
    if not values:
        return
    must.hold(len(values) == count, name, f"a list of {count} tensors", len(values))
    for tensor in values:
        must.dtype(name, tensor, *types)


def _shapes(forms: Forms, name: str, allowed: Any) -> None:
    """Each tensor of a parameter has a shape of `allowed(K, N)`, after E for one weight."""
    values = getattr(forms, name)
    if not values:
        return
    lead = (forms.count,) if forms.single else ()
    for tensor, weight in zip(values, forms.weight, strict=True):
        options = [(*lead, *shape) for shape in allowed(*matrix_shape(weight))]
        fits = any(
            len(o) == tensor.dim()
            and all(w in (None, h) for h, w in zip(tensor.shape, o, strict=True))
            for o in options
        )
        text = must.one_of(str(o).replace("None", "*") for o in options)
        must.hold(fits, name, f"of shape {text}", tuple(tensor.shape))


def parameters(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    dtype: torch.dtype | int,
    group_type: int = ROWS,
    groups: int = 0,
) -> None:
    """Types and shapes of bias, scales and result for the form that x and weight make."""
    form = form_of(x[0], forms.weight[0])
    scaled = form in ("quantized", "int4", "mixed", "float8")
    for name, used in (("scale", scaled), ("antiquant_scale", form == "weight-quantized")):
        must.hold(used or not getattr(forms, name), name, f"None in the {form} form", "tensors")
    if form != "weight-quantized":
        must.hold(
            not forms.antiquant_offset, "antiquant_offset", f"None in the {form} form", "tensors"
        )
    must.hold(scaled or not per_token, "per_token_scale", f"None in the {form} form", "tensors")
    if form == "plain":
        _plain(forms, x[0].dtype, dtype)
    elif form == "weight-quantized":
        _weight_quantized(forms, x[0].dtype, dtype)
    elif form == "quantized":
        _quantized(forms, x, per_token, dtype, group_type)
    elif form == "float8":
        _float8(forms, x, per_token, dtype, group_type, groups)
    else:
        _int4(forms, x, per_token, dtype, form)
    _shapes(forms, "bias", lambda k, n: [(n,)])


def _plain(forms: Forms, kind: torch.dtype, dtype: torch.dtype | int) -> None:
    types = (kind, _F32) if newest() else (_F32 if kind == _BF16 else kind,)
    _every("bias", forms.bias, len(forms.weight), *types)
    must.hold(dtype == kind, "output_dtype", f"None or {kind}", dtype)


def _weight_quantized(forms: Forms, kind: torch.dtype, dtype: torch.dtype | int) -> None:
    number, form = len(forms.weight), "in the weight-quantized form"
    scales = must.present("antiquant_scale", forms.antiquant_scale or None, form)
    int4 = forms.weight[0].dtype == _I32
    if not newest() and not (int4 and number == 1):
        must.present("antiquant_offset", forms.antiquant_offset or None, form)
    wide = (_BF16, _F32) if newest() else (_F32,)
    _every("bias", forms.bias, number, *(wide if kind == _BF16 else (kind,)))
    _every("antiquant_scale", forms.antiquant_scale, number, kind)
    _every("antiquant_offset", forms.antiquant_offset, number, kind)
    must.hold(dtype == kind, "output_dtype", f"None or {kind}", dtype)
    groups = ((None,), ()) if int4 else ((),)
    _shapes(forms, "antiquant_scale", lambda k, n: [(*g, n) for g in groups])
    _even_groups(forms)
    for offset, scale in zip(forms.antiquant_offset or (), scales, strict=False):
        must.shape("antiquant_offset", offset, tuple(scale.shape))


def _even_groups(forms: Forms) -> None:
    """Scales by groups of K: the groups are equally long, in and across the weights."""
    seen = set()
    for scale, weight in zip(forms.antiquant_scale or (), forms.weight, strict=False):
        if scale.dim() == (3 if forms.single else 2):
            depth, groups = matrix_shape(weight)[0], scale.shape[-2]
            fits = groups > 0 and depth % groups == 0
            must.hold(fits, "antiquant_scale", f"of groups that divide K ({depth})", groups)
            seen.add(depth // groups)
    must.hold(
        len(seen) <= 1, "antiquant_scale", "of groups of one length in all weights", sorted(seen)
    )


def _quantized(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    dtype: torch.dtype | int,
    group_type: int,
) -> None:
    """int8: the scale's type and the bias's follow the result's."""
    number, new = len(forms.weight), newest()
    allowed = (_I8, _F16, _BF16, _I32)
    must.hold(dtype in allowed, "output_dtype", must.one_of(allowed), dtype)
    biases: tuple[torch.dtype, ...] = (_I32,)
    if dtype == _BF16:
        biases += (_BF16, _F32) if new else (_BF16,)
    elif dtype == _F16 and new:
        biases += (_F16, _F32)
    _every("bias", forms.bias, number, *biases)
    if new:
        must.hold(group_type == ROWS, "group_type", "0 for int8 on this chip", group_type)
    one = len(x) == 1 and group_type == ROWS
    must.hold(one or not per_token, "per_token_scale", "None unless 'x' is one tensor", "tensors")
    if dtype == _I32:
        return
    scales = must.present("scale", forms.scale or None, f"for {dtype} results")
    words = (*PACKED,) if new and not per_token else ()
    needs: dict[torch.dtype | int, tuple[torch.dtype, ...]]
    needs = {_I8: PACKED, _BF16: (_BF16, *((_F32,) if new else ()), *words), _F16: (_F32, *words)}
    _every("scale", scales, number, *needs[dtype])
    by_group = [(1,), ()] if new and dtype != _I8 else []
    _shapes(forms, "scale", lambda k, n: [(n,), *by_group])
    if per_token:
        must.hold(dtype != _I8, "per_token_scale", "None for int8 results", "tensors")
        _every("per_token_scale", per_token, 1, _F32)
        must.shape("per_token_scale", per_token[0], (x[0].shape[0],))


def _int4(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    dtype: torch.dtype | int,
    form: str,
) -> None:
    """int4 weights, and x of int4 or int8."""
    number = len(forms.weight)
    must.hold(dtype in (_F16, _BF16), "output_dtype", must.one_of((_F16, _BF16)), dtype)
    must.present("scale", forms.scale or None, f"in the {form} form")
    _every("scale", forms.scale, number, *PACKED)
    _shapes(forms, "scale", lambda k, n: [(None, n), (n,)])
    if form == "mixed":
        _every("bias", forms.bias, number, _F32)
    else:
        must.hold(not forms.bias, "bias", "None in the int4 form", "tensors")
    if not per_token:
        return
    _every("per_token_scale", per_token, len(x), _F32)
    for tensor, part in zip(per_token, x, strict=True):
        shapes = [(part.shape[0],), *([(part.shape[0], 1)] if form == "mixed" else [])]
        fits = tuple(tensor.shape) in shapes
        must.hold(fits, "per_token_scale", "of shape " + must.one_of(shapes), tuple(tensor.shape))


def _float8(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    dtype: torch.dtype | int,
    group_type: int,
    groups: int,
) -> None:
    """8-bit floats: scales by group, column, row or tile, for groups of rows or depths."""
    for name, values in (("x", x), ("weight", forms.weight)):
        must.hold(len(values) == 1, name, "a list of one tensor", len(values))
    must.choice("group_type", group_type, (ROWS, DEPTHS))
    must.hold(dtype in (_F16, _BF16, _F32), "output_dtype", "a wider float", dtype)
    must.hold(not forms.bias, "bias", "None for 8-bit floats", "tensors")
    (scale,) = must.present("scale", forms.scale or None, "for 8-bit floats")
    must.dtype("scale", scale, _F32, *(() if per_token or group_type == DEPTHS else PACKED))
    token = per_token[0] if per_token else None
    must.dtype("per_token_scale", token, _F32)
    weight, rows = forms.weight[0], x[0].shape[0]
    columns = weight.shape[-1]
    if tiled(x[0], weight, scale, token, groups, group_type):
        return
    _one_of("scale", scale, [(groups, columns), (groups, 1), (groups,)])
    own = (groups, rows) if group_type == DEPTHS else (rows,)
    _one_of("per_token_scale", token, [own, (groups, 1), (groups,)])


def _one_of(name: str, tensor: torch.Tensor | None, shapes: Sequence[tuple[int, ...]]) -> None:
    if tensor is not None:
        fits = tuple(tensor.shape) in shapes
        must.hold(fits, name, "of shape " + must.one_of(shapes), tuple(tensor.shape))


def microscaled(
    x: Sequence[torch.Tensor],
    x_code: int | None,
    weight: Sequence[torch.Tensor],
    weight_code: int | None,
    scale_name: str,
    scale: Tensors,
    scale_code: int | None,
    per_token: Tensors,
    per_token_code: int | None,
    bias: Tensors,
    dtype: torch.dtype | int,
    group_type: int,
    groups: int,
) -> None:
    """The microscaling form: one x, one weight of all experts, scales by pairs of blocks of K."""
    for name, values in (
        ("x", x), ("weight", weight), (scale_name, scale), ("per_token_scale", per_token)
    ):  # fmt: skip
        must.hold(values and len(values) == 1, name, "a list of one tensor", len(values or ()))
    assert scale and per_token
    _mx.check_matrix("x", "x_dtype", x[0], x_code)
    _mx.check_matrix("weight", "weight_dtype", weight[0], weight_code)
    depths = group_type == DEPTHS
    must.ndim("x", x[0], 2)
    must.ndim("weight", weight[0], 2 if depths else 3)
    rows, depth = _mx.shape(x[0], x_code)
    *experts, k, columns = _mx.shape(weight[0], weight_code)
    must.hold(k == depth, "weight", f"of K {depth}, as 'x'", k)
    slots = depth // (_mx.BLOCK * _mx.PAIR) + groups if depths else _mx.pairs(depth)
    small = _mx.is_float4(x[0], x_code) or _mx.is_float4(weight[0], weight_code)
    must.hold(not (depths and small), "group_type", "0 for 4-bit floats", group_type)
    wanted: tuple[int, ...] = (rows, slots, _mx.PAIR)
    _mx.check_scale(
        "per_token_scale", "per_token_scale_dtype", per_token[0], per_token_code, wanted
    )
    wanted = (*experts, slots, columns, _mx.PAIR)
    _mx.check_scale(scale_name, "scale_dtype", scale[0], scale_code, wanted)
    _every("bias", bias, 1, _F32)
    if bias:
        must.hold(small, "bias", "None for 8-bit floats", "tensors")
        must.shape("bias", bias[0], (groups, columns))
    must.hold(dtype in (_F16, _BF16, _F32), "output_dtype", must.one_of((_F16, _BF16, _F32)), dtype)
