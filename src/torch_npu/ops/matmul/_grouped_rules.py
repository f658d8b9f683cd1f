"""What npu_grouped_matmul's page asks of its arguments: lists, forms by type, scenes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.matmul import _mx
from torch_npu.ops.matmul._gemm import FLOAT8, matrix_shape
from torch_npu.ops.matmul._grouped import ACTIVATIONS, Forms
from torch_npu.ops.matmul._groups import PAIRS
from torch_npu.ops.matmul._scales import PACKED
from torch_npu.ops.quant._packing import PER_WORD

_F16, _BF16, _F32, _I8, _I32 = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int8,
    torch.int32,
)
_MAX_LIST, _MAX_GROUPS, _INNER = 128, 1024, 65536

#: (x, weight) -> the form's name
_FORMS = {
    (_F16, _F16): "plain",
    (_BF16, _BF16): "plain",
    (_F32, _F32): "plain",
    (_I8, _I8): "quantised",
    (_I32, _I32): "int4",
    (_I8, _I32): "mixed",
    (_F16, _I8): "weight-quantised",
    (_BF16, _I8): "weight-quantised",
    (_F16, _I32): "weight-quantised",
    (_BF16, _I32): "weight-quantised",
}


def form_of(x: torch.Tensor, weight: torch.Tensor) -> str:
    """The form that the types of x and weight make; an error where they make none."""
    if chips.current().family == "A5" and x.dtype in FLOAT8:
        must.dtype("weight", weight, *FLOAT8)
        return "float8"
    must.dtype("x", x, *dict.fromkeys(pair[0] for pair in _FORMS))
    must.dtype("weight", weight, *(w for a, w in _FORMS if a == x.dtype))
    return _FORMS[x.dtype, weight.dtype]


def lists(x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], split_item: int) -> None:
    """Lengths, ranks and types of the two lists."""
    for name, values in (("x", x), ("weight", weight)):
        fits = 1 <= len(values) <= _MAX_LIST
        must.hold(fits, name, f"a list of 1 to {_MAX_LIST} tensors", len(values))
        for tensor in values:
            must.same_dtype(name, tensor, f"{name}[0]", values[0])
            must.ndim(name, tensor, 2, 6)
            size = tensor.shape[-1]
            must.hold(size < _INNER, name, f"of less than {_INNER} in its last dimension", size)
    for tensor in x:
        must.ndim("x", tensor, 2, 6 if split_item == 0 else 2)
        must.hold(tensor.dim() == x[0].dim(), "x", f"of {x[0].dim()} dimensions each", tensor.dim())
    for tensor in weight:
        must.ndim("weight", tensor, 2, 3 if len(weight) == 1 else 2)
    if chips.current().family == "310P":
        must.dtype("x", x[0], _F16)
        must.dtype("weight", weight[0], _F16)
        columns = matrix_shape(weight[0])[1]
        must.hold(columns % 16 == 0, "weight", "of an N that is a multiple of 16", columns)


def _depth(x: torch.Tensor) -> int:
    return x.shape[-1] * (PER_WORD if x.dtype == _I32 else 1)


def pairs(forms: Forms, x: Sequence[torch.Tensor], one_result: bool) -> None:
    """K of every x and its weight agree, and N of all weights where the result is one."""
    for place, weight in enumerate(forms.weight):
        depth = _depth(x[0 if len(x) == 1 else place])
        rows, columns = matrix_shape(weight)
        must.hold(rows == depth, "weight", f"of K {depth}, as 'x'", f"{rows} at index {place}")
        first = matrix_shape(forms.weight[0])[1]
        same = not one_result or columns == first
        must.hold(same, "weight", f"of the same N ({first})", f"{columns} at index {place}")


def _every(name: str, values: Sequence[torch.Tensor] | None, count: int, *types: Any) -> None:
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
    per_token: Sequence[torch.Tensor] | None,
    dtype: torch.dtype | int,
) -> None:
    """Types and shapes of bias, scales and result for the form that x and weight make."""
    form, kind = form_of(x[0], forms.weight[0]), x[0].dtype
    number = len(forms.weight)
    scaled = form in ("quantised", "int4", "mixed", "float8")
    for name, used in (("scale", scaled), ("antiquant_scale", form == "weight-quantised")):
        must.hold(used or not getattr(forms, name), name, f"None in the {form} form", "tensors")
    if form == "weight-quantised":
        must.present("antiquant_scale", forms.antiquant_scale or None, f"in the {form} form")
    else:
        must.hold(
            not forms.antiquant_offset, "antiquant_offset", f"None in the {form} form", "tensors"
        )
    if form in ("plain", "weight-quantised"):
        _every("bias", forms.bias, number, _F32 if kind == _BF16 else kind)
        _every("antiquant_scale", forms.antiquant_scale, number, kind)
        _every("antiquant_offset", forms.antiquant_offset, number, kind)
        must.hold(dtype == kind, "output_dtype", f"None or {kind}", dtype)
        groups = ((None,), ()) if forms.weight[0].dtype == _I32 else ((),)
        _shapes(forms, "antiquant_scale", lambda k, n: [(*g, n) for g in groups])
        _even_groups(forms)
        if forms.antiquant_offset:
            for offset, scale in zip(forms.antiquant_offset, forms.antiquant_scale, strict=True):
                must.shape("antiquant_offset", offset, tuple(scale.shape))
    elif form == "quantised":
        _every("bias", forms.bias, number, _I32, _BF16, _F16, _F32)
        if dtype != _I32:
            needs = {_I8: PACKED, _BF16: (_BF16,), _F16: (_F32,)}
            must.hold(dtype in needs, "output_dtype", must.one_of([*needs, _I32]), dtype)
            must.present("scale", forms.scale or None, f"for {dtype} results")
            _every("scale", forms.scale, number, *needs[dtype])
        _shapes(forms, "scale", lambda k, n: [(n,), (1,), ()])
    elif form == "float8":
        must.hold(dtype in (_F16, _BF16, _F32), "output_dtype", "a wider float", dtype)
        _every("bias", forms.bias, number, _F32)
        _every("scale", forms.scale, number, _F32, *PACKED)
        _shapes(forms, "scale", lambda k, n: [(n,), (1,), ()])
    else:
        must.hold(dtype in (_F16, _BF16), "output_dtype", must.one_of((_F16, _BF16)), dtype)
        must.present("scale", forms.scale or None, f"in the {form} form")
        _every("scale", forms.scale, number, *PACKED)
        _shapes(forms, "scale", lambda k, n: [(None, n), (n,)])
        _every("bias", forms.bias, number, *((_F32,) if form == "mixed" else ()))
    _shapes(forms, "bias", lambda k, n: [(n,)])
    _per_token(forms, x, per_token, scaled, form)


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


def _per_token(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Sequence[torch.Tensor] | None,
    scaled: bool,
    form: str,
) -> None:
    if not per_token:
        fits = forms.act_type == 0
        must.hold(fits, "act_type", "0 without 'per_token_scale'", forms.act_type)
        return
    older = chips.current().family == "310P"
    must.hold(scaled or older, "per_token_scale", f"None in the {form} form", "tensors")
    _every("per_token_scale", per_token, len(x), _F32)
    for tensor, part in zip(per_token, x, strict=True):
        shapes = [(part.shape[0],), (part.shape[0], 1)]
        fits = tuple(tensor.shape) in shapes
        must.hold(fits, "per_token_scale", "of shape " + must.one_of(shapes), tuple(tensor.shape))


def options(forms: Forms, x: Sequence[torch.Tensor], act_type: Any, tuning: Any) -> None:
    """The activation and the tuning hint."""
    must.choice("act_type", act_type, (*ACTIVATIONS, None))
    if tuning:
        expected = "None unless 'x' and 'weight' are int8"
        must.hold(
            x[0].dtype == forms.weight[0].dtype == _I8, "tuning_config", expected, list(tuning)
        )
        must.hold(min(tuning) >= 0, "tuning_config", "of non-negative numbers", min(tuning))


def scene(
    forms: Forms,
    x: Sequence[torch.Tensor],
    group_list: torch.Tensor | None,
    split_item: int,
    group_type: int,
    list_type: int,
) -> None:
    """Which lists may come together: by `group_type`, as the page's table has it."""
    allowed = {-1: (0, 1), 0: (2, 3), 2: (0, 1, 2, 3)}[group_type]
    must.hold(
        split_item in allowed,
        "split_item",
        must.one_of(allowed) + f" for group_type {group_type}",
        split_item,
    )
    if group_type != 2:
        many = len(x) > 1 or group_type == -1
        fits = not many or (len(x) == len(forms.weight) and not forms.single)
        must.hold(fits, "weight", f"a list of {len(x)} matrices, as 'x'", len(forms.weight))
        pairs(forms, x, split_item >= 2)
    if group_type == -1:
        must.hold(group_list is None, "group_list", "None for group_type -1", "a tensor")
        return
    if group_list is None:
        must.hold(len(x) > 1, "group_list", "given where 'x' is one tensor", None)
        return
    must.dtype("group_list", group_list, torch.int64)
    must.choice("group_list_type", list_type, (0, 1, PAIRS))
    count = group_list.shape[0] if group_type == 2 and len(forms.weight) == 1 else forms.count
    must.shape("group_list", group_list, (count, 2) if list_type == PAIRS else (count,))
    limit = _MAX_GROUPS if len(forms.weight) == 1 else _MAX_LIST
    must.hold(1 <= count <= limit, "group_list", f"of 1 to {limit} groups", count)
    if list_type == 1:
        must.hold(count > 1, "group_list", "of more than one group for group_list_type 1", count)
    if list_type == PAIRS:
        fits = x[0].dtype == forms.weight[0].dtype == _I8 and group_type == 0
        must.hold(fits, "group_list_type", "0 or 1 unless int8 rows are grouped", list_type)


def depth_groups(forms: Forms, x: Sequence[torch.Tensor], split_item: int) -> None:
    """Groups of K: one x of floats, and one matrix of weights, or a list for separate results."""
    form = form_of(x[0], forms.weight[0])
    must.hold(form == "plain", "group_type", f"-1 or 0 in the {form} form", 2)
    must.hold(len(x) == 1, "x", "one tensor for group_type 2", len(x))
    must.ndim("x", x[0], 2)
    must.hold(not forms.bias, "bias", "None for group_type 2", "tensors")
    one = len(forms.weight) == 1
    must.hold(
        one or split_item < 2, "weight", "one tensor where the results are one", len(forms.weight)
    )
    for tensor in forms.weight:
        must.ndim("weight", tensor, 2)
    rows = sum(t.shape[0] for t in forms.weight)
    must.hold(rows == x[0].shape[1], "weight", f"of {x[0].shape[1]} rows in all, K of 'x'", rows)


def host_list(
    forms: Forms,
    x: Sequence[torch.Tensor],
    group_list: Sequence[int] | None,
    split_item: int,
) -> None:
    """The overload with a list of ints: ends of the groups."""
    many = len(x) > 1
    fits = not many or len(x) == len(forms.weight)
    must.hold(fits, "weight", f"a list of {len(x)} matrices, as 'x'", len(forms.weight))
    for tensor in forms.weight:
        must.ndim("weight", tensor, 2)
    form = form_of(x[0], forms.weight[0])
    fits = form in ("plain", "quantised", "weight-quantised") and forms.weight[0].dtype != _I32
    must.hold(fits, "weight", "float16, float32, bfloat16 or int8 with a list of ints", form)
    pairs(forms, x, split_item >= 2)
    if not group_list:
        fits = many or len(forms.weight) == 1
        must.hold(fits, "group_list", "given where 'x' is one tensor", group_list)
        return
    must.hold(
        x[0].dim() == 2, "group_list", "None where 'x' has more than 2 dimensions", group_list
    )
    count = len(forms.weight)
    must.hold(len(group_list) == count, "group_list", f"of {count} values", len(group_list))
    must.hold(count > 1, "group_list", "of more than one value", count)


def microscaled(
    x: Sequence[torch.Tensor],
    x_code: int | None,
    weight: Sequence[torch.Tensor],
    weight_code: int | None,
    scale_name: str,
    scale: Sequence[torch.Tensor] | None,
    scale_code: int | None,
    per_token: Sequence[torch.Tensor] | None,
    per_token_code: int | None,
    bias: Sequence[torch.Tensor] | None,
    dtype: torch.dtype | int,
) -> None:
    """The microscaling form: one x, one weight of all experts, scales by pairs of blocks of K."""
    for name, values in (
        ("x", x), ("weight", weight), (scale_name, scale), ("per_token_scale", per_token)
    ):  # fmt: skip
        must.hold(values and len(values) == 1, name, "a list of one tensor", len(values or ()))
    assert scale and per_token
    _mx.check_matrix("x", "x_dtype", x[0], x_code)
    _mx.check_matrix("weight", "weight_dtype", weight[0], weight_code)
    must.ndim("x", x[0], 2)
    must.ndim("weight", weight[0], 3)
    rows, depth = _mx.shape(x[0], x_code)
    experts, k, columns = _mx.shape(weight[0], weight_code)
    must.hold(k == depth, "weight", f"of K {depth}, as 'x'", k)
    blocks = _mx.pairs(depth)
    wanted: tuple[int, ...] = (rows, blocks, _mx.PAIR)
    _mx.check_scale(
        "per_token_scale", "per_token_scale_dtype", per_token[0], per_token_code, wanted
    )
    wanted = (experts, blocks, columns, _mx.PAIR)
    _mx.check_scale(scale_name, "scale_dtype", scale[0], scale_code, wanted)
    _every("bias", bias, 1, _F32)
    if bias:
        must.shape("bias", bias[0], (experts, columns))
    must.hold(dtype in (_F16, _BF16, _F32), "output_dtype", must.one_of((_F16, _BF16, _F32)), dtype)


def grouped_rows(group_list: torch.Tensor | None, list_type: int, experts: int) -> None:
    """A list of groups of rows, one for each expert."""
    must.present("group_list", group_list, "where 'x' is one tensor")
    must.dtype("group_list", group_list, torch.int64)
    must.choice("group_list_type", list_type, (0, 1))
    must.shape("group_list", group_list, (experts,))
