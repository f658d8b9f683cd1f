"""npu_add_quant_gmm_ and npu_add_quant_gmm: quantized products of groups of depths, added to float32 matrices."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops.matmul import _experts, _groups
from torch_npu.ops.matmul.npu_add_quant_matmul_ import (
    check_matrices,
    check_powers,
    high,
    scaled,
    values,
)

_REST = (
    "Tensor x1, Tensor x2, Tensor x2_scale, Tensor group_list, *, Tensor? x1_scale=None, "
    "int? group_list_type=0, int[]? group_sizes=None, int? x1_dtype=None, int? x2_dtype=None, "
    "int? x1_scale_dtype=None, int? x2_scale_dtype=None)"
)


@npu_op(
    f"npu_add_quant_gmm_(Tensor(a!) self, {_REST} -> Tensor(a!)",
    functional=f"npu_add_quant_gmm(Tensor self, {_REST} -> Tensor",
    chips=("A5",),
    product=True,
)
def npu_add_quant_gmm_(
    self, x1, x2, x2_scale, group_list, x1_scale, group_list_type, x1_dtype, x2_dtype
):
    r"""Adds to each group's matrix the quantized product over its depths.

    $$ self_g \leftarrow self_g + \sum_{k \in group_g} s_1 x_{1,mk} \cdot s_2 x_{2,kn} $$

    Args:
        self: (G, M, N), float32; written.
        x1: (M, K), the transpose of a contiguous (K, M); float8_e4m3fn or float8_e5m2, or bytes that `x1_dtype` calls
            hifloat8.
        x2: (K, N), likewise, not transposed.
        x2_scale, x1_scale: for 8-bit floats bytes of powers of two as `npu_grouped_dynamic_mx_quant` lays them out:
            (K // 64 + G, N, 2) and, its first two dimensions swapped, (M, K // 64 + G, 2), those of group g from index
            start // 64 + g on; for hifloat8 float32, (G) or (G, 1) each, for `x2_scale` also (G, N).
        group_list: (G) int64, at most 1024 groups: where each group of depths ends, or how many it has.
        group_list_type: 0 ends, 1 sizes.
        group_sizes: None.
        x1_dtype, x2_dtype: hifloat8 for such bytes, else None or the dtype itself.
        x1_scale_dtype, x2_scale_dtype: float8_e8m0fnu for such bytes.

    Returns:
        `self`.

    Constraints:
        Ascend950.
    """
    kind, count = group_list_type or 0, group_list.shape[0]
    name, axis = "npu_add_quant_gmm_", "depths of 'x1'"
    x1 = x1.mT
    for group in _groups.read(name, group_list, kind, count, x1.shape[0], exact=False, axis=axis):
        part, index = slice(group.start, group.start + group.size), group.weight
        if not group.size:
            continue
        if high(x1_dtype):
            y = torch.matmul(values(x1[part], x1_dtype).t(), values(x2[part], x2_dtype))
            y = y * x2_scale[index].reshape(1, -1)
            y = y * x1_scale[index].reshape(1, 1)
        else:
            start = group.start // (_mx.BLOCK * _mx.PAIR) + index
            rows = slice(start, start + _mx.pairs(group.size))
            left = scaled(x1[part], None, x1_scale[:, rows].transpose(0, 1))
            y = torch.matmul(left.t(), scaled(x2[part], None, x2_scale[rows]))
        self[index] += y
    return self


@npu_add_quant_gmm_.meta
def _(self):
    return self


@npu_add_quant_gmm_.check
def _(
    self,
    x1,
    x2,
    x2_scale,
    group_list,
    x1_scale,
    group_list_type,
    group_sizes,
    x1_dtype,
    x2_dtype,
    x1_scale_dtype,
    x2_scale_dtype,
):
    hifloat8 = check_matrices(x1, x2, x1_dtype, x2_dtype)
    must.ndim("group_list", group_list, 1)
    groups, columns = group_list.shape[0], x2.shape[1]
    _experts.check_list(group_list, groups)
    must.choice("group_list_type", group_list_type, (None, 0, 1))
    must.dtype("self", self, torch.float32)
    must.shape("self", self, (groups, x1.shape[0], columns))
    must.unset("group_sizes", group_sizes)
    must.present("x1_scale", x1_scale, "always")
    if hifloat8:
        for name, scale, extra in (
            ("x1_scale", x1_scale, ()),
            ("x2_scale", x2_scale, ((groups, columns),)),
        ):
            must.dtype(name, scale, torch.float32)
            allowed = ((groups,), (groups, 1), *extra)
            given = tuple(scale.shape)
            expected = f"of shape {must.one_of(allowed)}"
            must.hold(given in allowed, name, expected, given, ErrCode.PARAM)
        for name, code in (("x1_scale_dtype", x1_scale_dtype), ("x2_scale_dtype", x2_scale_dtype)):
            must.choice(name, None if code is None else _dtypes.name(code), (None, "float32"))
        return
    slots = x1.shape[1] // (_mx.BLOCK * _mx.PAIR) + groups
    check_powers("x1_scale", x1_scale, x1_scale_dtype, (x1.shape[0], slots, 2))
    check_powers("x2_scale", x2_scale, x2_scale_dtype, (slots, columns, 2))


def _bytes(make, *shape):
    return make(*shape, dtype=torch.uint8, low=8, high=60)


npu_add_quant_gmm_.samples = [
    Sample(
        lambda make: (
            make(2, 4, 6),
            _bytes(make, 9, 4).t(),
            _bytes(make, 9, 6),
            make(2, 6, low=0),
            make(2, dtype=torch.int64, low=4, high=5),
        ),
        lambda make: {
            "x1_scale": make(2, low=0),
            "group_list_type": 1,
            "x1_dtype": 290,
            "x2_dtype": 290,
        },
    )
]
