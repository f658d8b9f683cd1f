"""npu_grouped_dynamic_mx_quant: microscaling formats along the rows of each group."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops import _native
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops._shared import _quant_groups as _groups

_ALGORITHMS = {name: (0, 2) for name in _mx.FLOAT4}


@npu_op(
    'npu_grouped_dynamic_mx_quant(Tensor x, Tensor group_index, *, str round_mode="rint", '
    "int dst_type=23, int blocksize=32, int? scale_alg=0, float? dst_type_max=0.0) -> (Tensor, Tensor)",
    chips=("A5",),
)
def npu_grouped_dynamic_mx_quant(
    x, group_index, round_mode, dst_type, blocksize, scale_alg, dst_type_max
):
    r"""`npu_dynamic_mx_quant` along the first axis, for groups of rows: no block reaches past its group.

    Args:
        x: (M, N); float16 or bfloat16.
        group_index: int32, the end of each group's rows: non-decreasing, the last one is M.
        round_mode: "rint"; for 4-bit floats also "round" and "floor".
        dst_type: float8_e5m2 (the default), float8_e4m3fn, float4_e2m1fn_x2 or float4_e1m2.
        blocksize: 32.
        scale_alg: 0; for 8-bit floats also 1, for 4-bit ones 2.
        dst_type_max: for `scale_alg` 2: what the largest magnitude of a block may become, 6 to 12 for float4_e2m1,
            1.75 to 3.5 for float4_e1m2; 0 is the least of them.

    Returns:
        y in the shape of `x` (4-bit floats two to a uint8 along the last dimension), and the scales as uint8,
        (M // 64 + groups, N, 2): those of group g begin at index start // 64 + g. Entries of no block are 0 (on the
        card they are whatever the memory held).

    Constraints:
        Ascend950.
    """
    options = _options(round_mode, dst_type, blocksize, scale_alg, dst_type_max)
    return _mx.by_group(x, group_index, False, **options, coarse=x.dtype)


def _options(round_mode, dst_type, blocksize, scale_alg, dst_type_max):
    return {
        "name": _formats.chosen(dst_type),
        "block": blocksize,
        "mode": round_mode,
        "algorithm": scale_alg or 0,
        "limit": dst_type_max or 0.0,
    }


@npu_grouped_dynamic_mx_quant.native
def _(x, group_index, round_mode, dst_type, blocksize, scale_alg, dst_type_max):
    if not _native.floats(x):
        return NotImplemented
    options = _options(round_mode, dst_type, blocksize, scale_alg, dst_type_max)
    return _mx.by_group(x, group_index, False, run=_mx.native, **options, coarse=x.dtype)


@npu_grouped_dynamic_mx_quant.check
def _(x, group_index, round_mode, dst_type, blocksize, scale_alg, dst_type_max):
    name = _mx.check(round_mode, dst_type, scale_alg or 0, _ALGORITHMS)
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2)
    must.choice("blocksize", blocksize, (32,))
    _mx.check_even("x", x, name)
    if name in _mx.FLOAT4:
        limits = (6.0, 12.0) if name == _mx.FLOAT4[0] else (1.75, 3.5)
        _mx.check_limit("dst_type_max", dst_type_max or 0.0, name, *limits)
    must.dtype("group_index", group_index, torch.int32)
    must.ndim("group_index", group_index, 1)
    must.hold(
        group_index.shape[0] > 0, "group_index", "of at least one group", group_index.shape[0]
    )
    _groups.check_ends("group_index", group_index, x.shape[0])


npu_grouped_dynamic_mx_quant.samples = [
    Sample(
        lambda make: (
            make(70, 6, dtype=torch.bfloat16),
            make(1, dtype=torch.int32, low=70, high=71),
        )
    ),
    Sample(
        lambda make: (
            make(40, 6, dtype=torch.float16),
            make(2, dtype=torch.int32, low=40, high=41),
        ),
        {"dst_type": 297, "scale_alg": 2, "round_mode": "floor", "dst_type_max": 2.5},
    ),
]
