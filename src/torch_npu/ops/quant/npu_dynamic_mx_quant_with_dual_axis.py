"""npu_dynamic_mx_quant_with_dual_axis: microscaling formats along each of the last two axes."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops import _native
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops.quant.npu_dynamic_mx_quant import ALGORITHMS


@npu_op(
    'npu_dynamic_mx_quant_with_dual_axis(Tensor input, *, str round_mode="rint", int dst_type=296, '
    "int scale_alg=0, float? dst_type_max=0.0) -> (Tensor, Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def npu_dynamic_mx_quant_with_dual_axis(input, round_mode, dst_type, scale_alg, dst_type_max):
    r"""`npu_dynamic_mx_quant` twice: with blocks of 32 along the last axis, and along the last but one.

    A forward pass multiplies along one axis and the gradient along the other; both operands come from one reading.

    Args:
        input: at least 2 dimensions; float16 or bfloat16.
        round_mode, dst_type, scale_alg, dst_type_max: as for `npu_dynamic_mx_quant`.

    Returns:
        y1 and the scales of the last axis, of shape (..., M, ceil(N / 64), 2); y2 and those of the last but one,
        (..., ceil(M / 64), N, 2).

    Constraints:
        Ascend950. With `scale_alg` 2 and a `dst_type_max` of 0, 6 or 7, magnitudes are compared in bfloat16.
    """
    return _both(_mx.quantize, input, round_mode, dst_type, scale_alg, dst_type_max)


def _both(run, input, round_mode, dst_type, scale_alg, dst_type_max):
    name, limit = _formats.chosen(dst_type), dst_type_max or 0.0

    def along(axis):
        return run(input, name, axis, _mx.BLOCK, round_mode, scale_alg, limit, coarse=input.dtype)

    return (*along(-1), *along(-2))


@npu_dynamic_mx_quant_with_dual_axis.native
def _(input, round_mode, dst_type, scale_alg, dst_type_max):
    if not _native.floats(input):
        return NotImplemented
    return _both(_mx.native, input, round_mode, dst_type, scale_alg, dst_type_max)


@npu_dynamic_mx_quant_with_dual_axis.check
def _(input, round_mode, dst_type, scale_alg, dst_type_max):
    name = _mx.check(round_mode, dst_type, scale_alg, ALGORITHMS)
    must.dtype("input", input, torch.float16, torch.bfloat16)
    must.ndim("input", input, 2, 7)
    _mx.check_even("input", input, name)
    _mx.check_limit("dst_type_max", dst_type_max or 0.0, name)


npu_dynamic_mx_quant_with_dual_axis.samples = [
    Sample(lambda make: (make(2, 40, 70, dtype=torch.bfloat16),)),
    Sample(
        lambda make: (make(64, 32, dtype=torch.float16),),
        {"dst_type": torch.float8_e5m2, "scale_alg": 1},
    ),
    Sample(
        lambda make: (make(33, 34, dtype=torch.float16),),
        {"round_mode": "round", "scale_alg": 2, "dst_type_max": 9.5},
    ),
]
