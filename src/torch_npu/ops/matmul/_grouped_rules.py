"""What npu_grouped_matmul asks of its lists: lengths, ranks, layouts, and which lists may come together.

From CANN's aclnn_grouped_matmul.cpp, which has fewer rules than the page. The parameters' rules: _grouped_parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._shared._gemm import FLOAT8, matrix_shape
from torch_npu.ops._shared._packing import PER_WORD
from torch_npu.ops.matmul._grouped import ACTIVATIONS, Forms
from torch_npu.ops.matmul._grouped_float8 import DEPTHS, ROWS
from torch_npu.ops.matmul._groups import PAIRS

_F16, _BF16, _F32, _I8, _I32 = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int8,
    torch.int32,
)
_MAX_LIST, _MAX_GROUPS, _INNER = 128, 1024, 65535

#: (x, weight) -> the form's name
_FORMS = {
    (_F16, _F16): "plain",
    (_BF16, _BF16): "plain",
    (_F32, _F32): "plain",
    (_I8, _I8): "quantized",
    (_I32, _I32): "int4",
    (_I8, _I32): "mixed",
    (_F16, _I8): "weight-quantized",
    (_BF16, _I8): "weight-quantized",
    (_F16, _I32): "weight-quantized",
    (_BF16, _I32): "weight-quantized",
}


def newest() -> bool:
    """Whether the chip is an Ascend950, which has its own rules."""
    return chips.current().family == "A5"


def form_of(x: torch.Tensor, weight: torch.Tensor) -> str:
    """The form that the types of x and weight make; an error where they make none."""
    if newest() and x.dtype in FLOAT8:
        must.dtype("weight", weight, *FLOAT8)
        return "float8"
    must.dtype("x", x, *dict.fromkeys(pair[0] for pair in _FORMS))
    must.dtype("weight", weight, *(w for a, w in _FORMS if a == x.dtype))
    return _FORMS[x.dtype, weight.dtype]


def transposed_view(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a contiguous one whose last two dimensions are exchanged, as CANN sees it."""
    sizes, strides = tensor.shape, tensor.stride()
    if strides[-2] != 1 or strides[-1] != sizes[-2]:
        return False
    step = sizes[-1] * sizes[-2]
    for size, stride in zip(reversed(sizes[:-2]), reversed(strides[:-2]), strict=True):
        if stride != step:
            return False
        step = step * size
    return True


def _single(tensor: torch.Tensor) -> bool:
    return tensor.shape[-1] == 1 and tensor.shape[-2] == 1


def lists(x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], group_type: int) -> None:
    """Lengths, ranks and types of the two lists."""
    plain = newest() and x and x[0].is_floating_point() and x[0].dtype not in FLOAT8
    limit = _MAX_GROUPS if plain else _MAX_LIST
    for name, values in (("x", x), ("weight", weight)):
        fits = 1 <= len(values) <= limit
        must.hold(fits, name, f"a list of 1 to {limit} tensors", len(values))
        for tensor in values:
            must.same_dtype(name, tensor, f"{name}[0]", values[0])
    for tensor in x:
        must.ndim("x", tensor, 2, 6 if group_type == -1 else 2)
    for tensor in weight:
        must.ndim("weight", tensor, 2, 3 if len(weight) == 1 else 2)
    if chips.current().family == "310P":
        must.dtype("x", x[0], _F16)
        must.dtype("weight", weight[0], _F16)
        columns = matrix_shape(weight[0])[1]
        must.hold(columns % 16 == 0, "weight", "of an N that is a multiple of 16", columns)
        must.hold(group_type == ROWS, "group_type", "0 on this chip", group_type)
        for name, values in (("x", x), ("weight", weight)):
            must.hold(len(values) == 1, name, "a list of one tensor on this chip", len(values))
    layouts(x, weight, group_type)
    _inner_sizes(x, weight, group_type)


def layouts(x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], group_type: int) -> None:
    """Groups of depths take a transposed view of x and a plain weight, all others a plain x."""
    if group_type == DEPTHS:
        must.hold(transposed_view(x[0]), "x", "the transpose of a contiguous matrix", x[0].stride())
        for tensor in weight:
            lying = transposed_view(tensor) and not _single(tensor)
            must.hold(
                not lying, "weight", "contiguous, not transposed, for group_type 2", tensor.stride()
            )
        return
    for tensor in x:
        lying = transposed_view(tensor) and not _single(tensor)
        must.hold(
            not lying,
            "x",
            f"contiguous, not a transposed view, for group_type {group_type}",
            tensor.stride(),
        )
    first = transposed_view(weight[0])
    for tensor in weight:
        same = transposed_view(tensor) == first
        must.hold(same, "weight", "contiguous or transposed, all tensors alike", tensor.stride())


def _inner_sizes(
    x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], group_type: int
) -> None:
    """The contiguous dimensions are limited but on Ascend950: of x always, of a plain weight."""
    if newest():
        return
    for tensor in x:
        size = tensor.shape[0] if group_type == DEPTHS else _depth(tensor)
        which = "M" if group_type == DEPTHS else "K"
        must.hold(size <= _INNER, "x", f"of a {which} up to {_INNER}", size)
    for tensor in weight:
        size = matrix_shape(tensor)[1]
        fits = size <= _INNER or transposed_view(tensor)
        must.hold(fits, "weight", f"of an N up to {_INNER}, or transposed", size)


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


def options(
    forms: Forms, x: Sequence[torch.Tensor], act_type: Any, tuning: Any, dtype: Any
) -> None:
    """The activation, for int8 products of half precision, and the tuning hint."""
    must.choice("act_type", act_type, (*ACTIVATIONS, None))
    if act_type:
        fits = form_of(x[0], forms.weight[0]) == "quantized" and dtype in (_F16, _BF16)
        expected = "0 unless int8 gives float16 or bfloat16"
        must.hold(fits, "act_type", expected, act_type)
    if tuning:
        most = max(tensor.shape[0] for tensor in x)
        fits = 0 <= tuning[0] <= most
        must.hold(fits, "tuning_config", f"from 0 to {most}, the rows of 'x'", tuning[0])


def scene(
    forms: Forms,
    x: Sequence[torch.Tensor],
    group_list: torch.Tensor | None,
    split_item: int,
    group_type: int,
    list_type: int,
) -> None:
    """Which lists may come together: by `group_type`, as the page's table has it."""
    allowed = {-1: (0, 1), ROWS: (2, 3), DEPTHS: (0, 1, 2, 3)}[group_type]
    must.hold(
        split_item in allowed,
        "split_item",
        must.one_of(allowed) + f" for group_type {group_type}",
        split_item,
    )
    if group_type != DEPTHS:
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
    check_list(forms, group_list, group_type, list_type)


def check_list(forms: Forms, group_list: torch.Tensor, group_type: int, list_type: int) -> None:
    """The type, shape and length of a group list; pairs are for groups of rows."""
    must.dtype("group_list", group_list, torch.int64)
    must.choice("group_list_type", list_type, (0, 1, PAIRS))
    if list_type == PAIRS:
        fits = group_type == ROWS and chips.current().family != "310P"
        must.hold(fits, "group_list_type", "0 or 1 unless rows are grouped", list_type)
    free = group_type == DEPTHS and len(forms.weight) == 1
    count = group_list.shape[0] if free else forms.count
    must.shape("group_list", group_list, (count, 2) if list_type == PAIRS else (count,))
    limit = _MAX_GROUPS if len(forms.weight) == 1 or newest() else _MAX_LIST
    must.hold(1 <= count <= limit, "group_list", f"of 1 to {limit} groups", count)


def depth_groups(forms: Forms, x: Sequence[torch.Tensor], split_item: int) -> None:
    """Groups of K: one x of floats, and one matrix of weights, or a list for separate results."""
    form = form_of(x[0], forms.weight[0])
    must.hold(form in ("plain", "float8"), "group_type", f"-1 or 0 in the {form} form", DEPTHS)
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
    if chips.current().family in ("A2", "A3"):
        must.dtype("x", x[0], _F16, _BF16, _I8)
    many = len(x) > 1
    fits = not many or len(x) == len(forms.weight)
    must.hold(fits, "weight", f"a list of {len(x)} matrices, as 'x'", len(forms.weight))
    for tensor in forms.weight:
        must.ndim("weight", tensor, 2)
    form = form_of(x[0], forms.weight[0])
    fits = form in ("plain", "quantized", "weight-quantized") and forms.weight[0].dtype != _I32
    must.hold(fits, "weight", "float16, float32, bfloat16 or int8 with a list of ints", form)
    pairs(forms, x, split_item >= 2)
    alone = len(forms.weight) == 1
    must.hold(not alone or split_item < 2, "split_item", "0 or 1 for one weight", split_item)
    if (alone or (many and split_item < 2)) and not newest():
        for tensor in forms.weight:
            lying = transposed_view(tensor) and not _single(tensor)
            must.hold(
                not lying,
                "weight",
                "contiguous, not transposed, where every x has its own",
                "a view",
            )
    if not group_list:
        fits = many or len(forms.weight) == 1
        must.hold(fits, "group_list", "given where 'x' is one tensor", group_list)
        return
    must.hold(
        x[0].dim() == 2, "group_list", "None where 'x' has more than 2 dimensions", group_list
    )
    fits = split_item >= 2 or not many
    must.hold(fits, "x", "one tensor where a list cuts it into separate results", len(x))
    count = len(forms.weight)
    must.hold(len(group_list) == count, "group_list", f"of {count} values", len(group_list))
