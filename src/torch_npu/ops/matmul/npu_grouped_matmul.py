"""npu_grouped_matmul and its overload: many products at once, each group with its own weight."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import (
    FLOAT8,
    dtype_of,
    matrix_shape,
    restored,
    stand_in,
    torch_dtype,
)
from torch_npu.ops.matmul import _grouped, _grouped_float8, _grouped_sharding, _groups
from torch_npu.ops.matmul import _grouped_parameters as parameters
from torch_npu.ops.matmul import _grouped_rules as rules
from torch_npu.ops.matmul._grouped import Forms

_NAME = "npu_grouped_matmul"


def _reserved(offset, activation_input, activation_quant_scale, activation_quant_offset):
    must.unset("offset", offset or None)
    must.unset("activation_input", activation_input or None)
    must.unset("activation_quant_scale", activation_quant_scale or None)
    must.unset("activation_quant_offset", activation_quant_offset or None)


def _microscaled(scale, scale_dtype, per_token_scale, per_token_scale_dtype):
    firsts = (scale[0] if scale else None), (per_token_scale[0] if per_token_scale else None)
    return _mx.asked(scale_dtype, firsts[0]) or _mx.asked(per_token_scale_dtype, firsts[1])


def _own_groups(x):
    """The groups that the tensors of x are, where no list says it."""
    groups, start = [], 0
    for place, tensor in enumerate(x):
        groups.append(_groups.Group(place, start, tensor.shape[0]))
        start += tensor.shape[0]
    return groups


@npu_op(
    "npu_grouped_matmul(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, "
    "Tensor[]? offset=None, Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, "
    "Tensor[]? per_token_scale=None, Tensor? group_list=None, Tensor[]? activation_input=None, "
    "Tensor[]? activation_quant_scale=None, Tensor[]? activation_quant_offset=None, int? split_item=0, "
    "int? group_type=None, int? group_list_type=0, int? act_type=0, int[]? tuning_config=None, "
    "int? output_dtype=None, int? x_dtype=None, int? weight_dtype=None, int? scale_dtype=None, "
    "int? per_token_scale_dtype=None) -> Tensor[]",
    product=True,
)
def npu_grouped_matmul(
    x,
    weight,
    bias,
    scale,
    antiquant_scale,
    antiquant_offset,
    per_token_scale,
    group_list,
    split_item,
    group_type,
    group_list_type,
    act_type,
    output_dtype,
    x_dtype,
    weight_dtype,
    per_token_scale_dtype,
):
    r"""Products of groups, each with its own weight: the layers of a mixture of experts.

    $$ y_i = x_i \cdot w_i + b_i $$

    quantized, with an int32 bias inside and a floating one outside:
    $$ y_i = \mathrm{act}((x_i w_i + b_i) \cdot \mathrm{scale}_i \cdot \mathrm{pertoken}_i), \quad
       y_i = \mathrm{act}(x_i w_i \cdot \mathrm{scale}_i \cdot \mathrm{pertoken}_i + b_i) $$

    weight-quantized:
    $$ y_i = x_i \cdot ((w_i + \mathrm{antiquant\_offset}_i) \cdot \mathrm{antiquant\_scale}_i) + b_i $$

    Args:
        x: 1 to 128 tensors (M, K), or of 2 to 6 dimensions for group_type -1; float16, bfloat16,
            float32, int8, int4 eight to an int32, and on Ascend950 float8. For group_type 2 the
            transpose of a contiguous matrix, otherwise no transposed view.
        weight: 1 to 128 matrices (K, N), or one tensor (E, K, N); the dtype of `x`, or int8 or int4
            in the weight-quantized form. A transposed view is fine (all tensors or none, not for
            group_type 2); int4 is packed along its contiguous dimension.
        bias: (N,) each, or one (E, N): float16 for float16, float32 for bfloat16 and float32;
            int32 for int8, and bfloat16, added at the end, for bfloat16 results. On Ascend950 also
            the dtype of `x` or of the result, or float32.
        scale: (N,) each, or one (E, N): int64 packed for int8 results, bfloat16 for bfloat16,
            float32 for float16; on Ascend950 also packed or float32 for both, and (E,) or (E, 1).
            int4: packed, by groups of K, (E, G, N).
        offset: reserved.
        antiquant_scale: (N,) each, or one (E, N); int4 weights also by groups, (G, N) or (E, G, N).
        antiquant_offset: like `antiquant_scale`; optional for int4 in one tensor and on Ascend950.
        per_token_scale: float32 (M,) for one quantized x.
        group_list: int64; where the groups end, how long they are, or pairs of a group and its
            length, see `group_list_type`. Groups may be empty.
        activation_input, activation_quant_scale, activation_quant_offset: reserved.
        split_item: 0 or 1 for separate results, 2 or 3 for one result.
        group_type: -1: every x has its weight and its result; 0: groups of rows, one result; 2:
            groups of K, one result (G, M, N), or (M, N) each for separate results.
        group_list_type: 0: ends, 1: lengths, 2: pairs (E, 2), for groups of rows.
        act_type: 0 none, 1 relu, 2 tanh gelu, 4 fast gelu, 5 silu; for int8 that gives
            float16 or bfloat16.
        tuning_config: the expected tokens of an expert, a hint.
        output_dtype: the dtype of `x` by default; int8 can give int8, bfloat16, float16 or int32.
        x_dtype, weight_dtype: on Ascend950, hifloat8: the bytes of `x` and `weight` are such. With
            scales of powers of two float4_e2m1fn_x2 or float4_e1m2fn_x2, two to a byte.
        scale_dtype, per_token_scale_dtype: on Ascend950, float8_e8m0fnu for both: the microscaling
            form below.

    Returns:
        A list of results.

    Constraints:
        The groups of rows of one `x` may end before its last row, as in the page's own example and
        where a batch of tokens is padded; the rows left over are zero (on the card they are not
        written). They must not reach further. So may groups of K. Several `x` are covered exactly.

        K of `x` (M for group_type 2) and N of a weight that is not transposed are at most 65535,
        but on Ascend950.

        A restored weight is rounded to the dtype of `x`, as the cube unit takes it.

        int8 `x` with int4 weights (mixed): the card computes
        $ (\sum_g ((x - 8) w)_g \, \mathrm{scale}_g + b) \cdot \mathrm{pertoken} $; the float32 bias
        has to hold $ 8 \sum_k w \cdot \mathrm{scale} $ besides the user's own.

        8-bit floats (Ascend950): one `x`, one weight, no bias, groups of rows or of K; scales by
        group, column or tile of 128, of `x` by group, row or tile, as _grouped_float8.py has them.

        Microscaling form (Ascend950, groups of rows of one `x`, one weight (E, K, N); for 8-bit
        floats groups of K too, with scales as `npu_grouped_dynamic_mx_quant` lays them out): 8-bit
        or 4-bit floats, 32 depths share a scale that is a power of two: `per_token_scale`
        (M, ceil(K / 64), 2), `scale` (E, ceil(K / 64), N, 2), bytes or float8_e8m0fnu; results
        float16, bfloat16 or float32, `bias` float32 for 4-bit floats. Where `x` is wider than `weight`, the scale of
        the latter may come as `antiquant_scale`.

    Differs from upstream:
        Groups that reach past the last row raise. `offset` of int8 with int4 weights raises.
        Storage formats are tags here: weights in NZ are not asked for whole blocks.
    """
    kind, dtype = group_list_type or 0, torch_dtype(output_dtype, x[0].dtype)

    def depth_groups(count):
        depth, axis = x[0].shape[1], "columns of 'x'"
        return _groups.read(_NAME, group_list, kind, count, depth, exact=False, axis=axis)

    if per_token_scale and _mx.asked(per_token_scale_dtype, per_token_scale[0]):
        factors = (scale or antiquant_scale)[0]
        if group_type == 2:
            groups = depth_groups(group_list.shape[0])
            operands = x[0], weight[0], factors, per_token_scale[0]
            return [_grouped_float8.microscaled_depths(*operands, groups, dtype)]
        rows = _mx.left(x[0], x_dtype, per_token_scale[0])
        forms = Forms([_mx.right(weight[0], weight_dtype, factors)], bias)
        groups = _groups.read(_NAME, group_list, kind, forms.count, rows.shape[0], exact=False)
        return _grouped.joined(forms, [rows], None, groups, dtype)
    x = [restored(t, x_dtype) for t in x]
    weight = [restored(t, weight_dtype) for t in weight]
    if x_dtype is not None or x[0].dtype in FLOAT8:
        operands = x[0], weight[0], scale[0], per_token_scale[0] if per_token_scale else None
        if group_type == 2:
            groups = depth_groups(group_list.shape[0])
            return [_grouped_float8.depths(*operands, groups, dtype)]
        rows = x[0].shape[0]
        groups = _groups.read(_NAME, group_list, kind, weight[0].shape[0], rows, exact=False)
        return [_grouped_float8.rows(*operands, groups, dtype)]
    forms = Forms(weight, bias, scale, antiquant_scale, antiquant_offset, act_type or 0)
    if group_type == -1:
        return _grouped.separate(forms, x, per_token_scale, dtype)
    if group_type == 2:
        groups = depth_groups(forms.count)
        return _grouped.depths(forms, x[0], groups, dtype, (split_item or 0) >= 2)
    groups = _own_groups(x)
    if group_list is not None:
        rows = sum(t.shape[0] for t in x)
        groups = _groups.read(_NAME, group_list, kind, forms.count, rows, exact=len(x) > 1)
    if len(x) > 1:
        _groups.matching(_NAME, groups, [t.shape[0] for t in x])
    return _grouped.joined(forms, x, per_token_scale, groups, dtype)


@npu_grouped_matmul.check
def _(
    x,
    weight,
    bias,
    scale,
    offset,
    antiquant_scale,
    antiquant_offset,
    per_token_scale,
    group_list,
    activation_input,
    activation_quant_scale,
    activation_quant_offset,
    split_item,
    group_type,
    group_list_type,
    act_type,
    tuning_config,
    output_dtype,
    x_dtype,
    weight_dtype,
    scale_dtype,
    per_token_scale_dtype,
):
    _reserved(offset, activation_input, activation_quant_scale, activation_quant_offset)
    dtype = dtype_of(output_dtype, x[0].dtype if x else torch.float32)
    if _microscaled(scale, scale_dtype, per_token_scale, per_token_scale_dtype):
        _mx.check_chip("per_token_scale_dtype" if scale_dtype is None else "scale_dtype")
        must.choice("group_type", group_type, (0, 2))
        must.choice("split_item", split_item, (2, 3))
        must.choice("act_type", act_type or 0, (0,))
        must.unset("antiquant_offset", antiquant_offset or None)
        both = scale and antiquant_scale
        must.hold(not both, "antiquant_scale", "None together with 'scale'", "tensors")
        name = "antiquant_scale" if antiquant_scale else "scale"
        code = per_token_scale_dtype if antiquant_scale else scale_dtype
        must.present("group_list", group_list, "where 'x' is one tensor")
        parameters.microscaled(
            x, x_dtype, weight, weight_dtype, name, scale or antiquant_scale, code,
            per_token_scale, per_token_scale_dtype, bias, dtype, group_type, group_list.shape[0],
        )  # fmt: skip
        rules.layouts(x, weight, group_type)
        rules.check_list(Forms(weight), group_list, group_type, group_list_type or 0)
        return
    x = [stand_in("x", "x_dtype", t, x_dtype) for t in x]
    weight = [stand_in("weight", "weight_dtype", t, weight_dtype) for t in weight]
    must.unset("scale_dtype", scale_dtype)
    must.unset("per_token_scale_dtype", per_token_scale_dtype)
    missing = group_type is None
    words = "Requires manual passing group_type" if missing else "The group type must be one"
    must.choice("group_type", group_type, (-1, 0, 2), upstream=words)
    split = split_item or 0
    must.choice("split_item", split, (0, 1, 2, 3))
    rules.lists(x, weight, group_type)
    forms = Forms(weight, bias, scale, antiquant_scale, antiquant_offset, act_type or 0)
    rules.options(forms, x, act_type, tuning_config, dtype)
    if group_type == 2:
        rules.depth_groups(forms, x, split)
    rules.scene(forms, x, group_list, split, group_type, group_list_type or 0)
    groups = 0 if group_list is None else group_list.shape[0]
    parameters.parameters(forms, x, per_token_scale, dtype, group_type, groups)


@npu_grouped_matmul.meta
def _(x, weight, group_list, split_item, group_type, output_dtype, weight_dtype):
    dtype = dtype_of(output_dtype, x[0].dtype)
    if _mx.is_float4(weight[0], weight_dtype):
        return [x[0].new_empty(x[0].shape[0], _mx.shape(weight[0], weight_dtype)[-1], dtype=dtype)]
    widths = [matrix_shape(w)[1] for w in weight]
    if group_type == -1:
        shapes = [(*t.shape[:-1], n) for t, n in zip(x, widths, strict=True)]
    elif group_type == 2:
        groups, rows = group_list.shape[0], x[0].shape[0]
        if (split_item or 0) >= 2:
            shapes = [(groups, rows, widths[0])]
        else:
            shapes = [(rows, n) for n in (widths if len(widths) > 1 else widths * groups)]
    else:
        shapes = [(sum(t.shape[0] for t in x), widths[0])]
    return [x[0].new_empty(shape, dtype=dtype) for shape in shapes]


@npu_grouped_matmul.sharding
def _(x, weight, bias, scale, offset, antiquant_scale, per_token_scale, group_type, act_type):
    if not (scale or offset or antiquant_scale or per_token_scale):
        yield from _grouped_sharding.shardings(x, weight, bias, group_type, act_type)


npu_grouped_matmul.samples = [
    Sample(
        lambda make: ([make(6, 8)], [make(3, 8, 4)]),
        lambda make: {
            "bias": [make(3, 4)],
            "group_list": torch.tensor([2, 2, 6], device=make(1).device),
            "split_item": 3,
            "group_type": 0,
        },
    ),
    Sample(
        lambda make: (
            [make(2, 3, 8, dtype=torch.float16), make(4, 2, 6, dtype=torch.float16)],
            [make(8, 4, dtype=torch.float16), make(6, 5, dtype=torch.float16)],
        ),
        {"group_type": -1},
    ),
    Sample(
        lambda make: (
            [make(6, 8, dtype=torch.int8, low=-9, high=9)],
            [make(2, 8, 4, dtype=torch.int8, low=-9, high=9)],
        ),
        lambda make: {
            "scale": [make(2, 4, dtype=torch.bfloat16)],
            "per_token_scale": [make(6)],
            "group_list": torch.tensor([4, 2], device=make(1).device),
            "group_list_type": 1,
            "split_item": 2,
            "group_type": 0,
            "act_type": 5,
            "output_dtype": torch.bfloat16,
        },
    ),
    Sample(
        lambda make: (
            [make(8, 6, dtype=torch.bfloat16).mT],
            [make(8, 4, dtype=torch.bfloat16)],
        ),
        lambda make: {
            "group_list": torch.tensor([3, 8], device=make(1).device),
            "split_item": 3,
            "group_type": 2,
        },
    ),
]


@npu_op(
    "npu_grouped_matmul.List(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, "
    "Tensor[]? offset=None, Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, "
    "Tensor[]? per_token_scale=None, int[]? group_list=None, Tensor[]? activation_input=None, "
    "Tensor[]? activation_quant_scale=None, Tensor[]? activation_quant_offset=None, int? split_item=0, "
    "int? group_type=None, int? group_list_type=0, int? act_type=0, ScalarType? output_dtype=None) "
    "-> Tensor[]",
    product=True,
)
def npu_grouped_matmul_List(
    x, weight, bias, scale, antiquant_scale, antiquant_offset, group_list, split_item, output_dtype
):
    r"""`npu_grouped_matmul` with the ends of the groups as a list of ints, non-decreasing.

    $$ y_i = x_i \cdot w_i + b_i $$

    Args:
        x: one tensor (M, K) that `group_list` cuts, or as many as weights.
        weight: matrices (K, N); float16, bfloat16 or int8, and on Ascend950 float32.
        bias: as in the other overload.
        scale: as in the other overload; int64 packed.
        antiquant_scale: as in the other overload, by column.
        antiquant_offset: as in the other overload.
        group_list: where the groups of rows end; the last value is the rows of `x`.
        split_item: 0 or 1 for a result for each weight, 2 or 3 for one result.
        output_dtype: the dtype of `x`.
        offset, per_token_scale, activation_input, activation_quant_scale, activation_quant_offset,
            group_list_type, act_type: reserved here.
        group_type: -1 to 2, or None; the lists alone say how `x` is cut.

    Returns:
        A list of results.
    """
    forms = Forms(weight, bias, scale, antiquant_scale, antiquant_offset)
    dtype = output_dtype or x[0].dtype
    one_result = (split_item or 0) >= 2
    if not group_list and not one_result:
        return _grouped.separate(forms, x, None, dtype)
    groups = _own_groups(x)
    if group_list:
        rows = sum(t.shape[0] for t in x)
        groups = _groups.read(_NAME, group_list, _groups.ENDS, forms.count, rows, exact=True)
    if len(x) > 1:
        _groups.matching(_NAME, groups, [t.shape[0] for t in x])
    return (_grouped.joined if one_result else _grouped.split)(forms, x, None, groups, dtype)


@npu_grouped_matmul_List.check
def _(
    x,
    weight,
    bias,
    scale,
    offset,
    antiquant_scale,
    antiquant_offset,
    per_token_scale,
    group_list,
    activation_input,
    activation_quant_scale,
    activation_quant_offset,
    split_item,
    group_type,
    group_list_type,
    act_type,
    output_dtype,
):
    _reserved(offset, activation_input, activation_quant_scale, activation_quant_offset)
    must.unset("per_token_scale", per_token_scale or None)
    must.choice(
        "group_type", group_type, (None, -1, 0, 1, 2)
    )  # this overload looks at the lists alone
    must.unset("group_list_type", group_list_type or 0, 0)
    must.unset("act_type", act_type or 0, 0)
    split = split_item or 0
    must.choice("split_item", split, (0, 1, 2, 3))
    rules.lists(x, weight, 0 if group_list or split >= 2 else -1)
    forms = Forms(weight, bias, scale, antiquant_scale, antiquant_offset)
    rules.host_list(forms, x, group_list, split)
    parameters.parameters(forms, x, None, output_dtype or x[0].dtype)


@npu_grouped_matmul_List.sharding
def _(x, weight, bias, scale, offset, antiquant_scale, per_token_scale, group_type, act_type):
    if not (scale or offset or antiquant_scale or per_token_scale):
        yield from _grouped_sharding.shardings(x, weight, bias, group_type, act_type)


npu_grouped_matmul_List.samples = [
    Sample(
        lambda make: (
            [make(6, 8, dtype=torch.bfloat16)],
            [make(8, 4, dtype=torch.bfloat16), make(8, 4, dtype=torch.bfloat16)],
        ),
        {"group_list": [2, 6], "split_item": 3},
    ),
    Sample(
        lambda make: (
            [make(6, 8, dtype=torch.bfloat16)],
            [make(8, 4, dtype=torch.bfloat16), make(8, 5, dtype=torch.bfloat16)],
        ),
        lambda make: {"bias": [make(4), make(5)], "group_list": [6, 6]},
    ),
]
