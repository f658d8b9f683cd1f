"""npu_dynamic_mx_quant: quantization to a microscaling format along one axis."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops import _native
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx

#: what the host code accepts (ops-nn, quant/dynamic_mx_quant/op_host)
ALGORITHMS = {"float4_e2m1fn_x2": (0, 2), "float4_e1m2fn_x2": (0,)}


@npu_op(
    'npu_dynamic_mx_quant(Tensor input, *, int axis=-1, str round_mode="rint", int dst_type=296, '
    "int block_size=32, int? scale_alg=0, float dst_type_max=0.0, float max_low_bound=0.0) "
    "-> (Tensor, Tensor)",
    chips=("A5",),
)
def npu_dynamic_mx_quant(
    input, axis, round_mode, dst_type, block_size, scale_alg, dst_type_max, max_low_bound
):
    r"""Quantizes blocks of an axis to 8-bit or 4-bit floats with a power of two as the scale of each block.

    With `scale_alg` 0 (the OCP MX specification)

    $$ s = 2^{\lfloor \log_2 \max_{block} |x| \rfloor - e_{max}}, \qquad y = \mathrm{round}(x / s) $$

    where $e_{max}$ is the exponent of the format's largest value: 2 for float4_e2m1, 0 for float4_e1m2, 8 for
    float8_e4m3fn, 15 for float8_e5m2. With 1 and 2, $s$ is the least power of two such that $\max |x| / s$ is at most
    the format's largest value or `dst_type_max`. Values past the format's range saturate. A block with a NaN or an
    infinity has the scale NaN (byte 255) and quantizes to 0, as does one whose scale by algorithm 0 would be 2^-127.

    Args:
        input: x, 1 to 7 dimensions; float16, bfloat16 or float32.
        axis: the axis that the blocks divide.
        round_mode: "rint" (halves to even); for 4-bit floats also "round" (halves away from zero) and "floor".
        dst_type: float4_e2m1fn_x2 (the default), float4_e1m2, float8_e4m3fn or float8_e5m2.
        block_size: a multiple of 32 up to 1024; 32 for float32 input and for `scale_alg` 2.
        scale_alg: 0; for 8-bit floats also 1, for float4_e2m1fn_x2 also 2.
        dst_type_max: for `scale_alg` 2, 6 to 12: what the largest magnitude of a block may become; 0 is 6. For 0, 6
            and 7 float16 input is compared after rounding to bfloat16 if `axis` is the last one, float32 input
            without its last 16 bits.
        max_low_bound: for `scale_alg` 1, the least magnitude that counts for the scale of a block that is not zero.

    Returns:
        y in the shape of `input` (4-bit floats two to a uint8 along the last dimension, the first one in the low
        bits), and the scales as uint8 (float8_e8m0fnu): the axis has one element for two blocks, whose scales lie
        in an added last dimension.

    Constraints:
        Ascend950. float32 input needs at least 32 elements along the axis, 4-bit floats an even last dimension.
    """
    options = _options(
        input, axis, round_mode, dst_type, block_size, scale_alg, dst_type_max, max_low_bound
    )
    return _mx.quantize(input, *options)


def _options(
    input, axis, round_mode, dst_type, block_size, scale_alg, dst_type_max, max_low_bound
):  # fmt: skip
    last = axis % input.dim() == input.dim() - 1
    coarse = input.dtype if last or input.dtype == torch.float32 else None
    name = _formats.chosen(dst_type)
    algorithm = scale_alg or 0
    return name, axis, block_size, round_mode, algorithm, dst_type_max, max_low_bound, coarse


@npu_dynamic_mx_quant.native
def _(input, axis, round_mode, dst_type, block_size, scale_alg, dst_type_max, max_low_bound):
    if not _native.floats(input):
        return NotImplemented
    options = _options(
        input, axis, round_mode, dst_type, block_size, scale_alg, dst_type_max, max_low_bound
    )
    return _mx.native(input, *options)


@npu_dynamic_mx_quant.check
def _(input, axis, round_mode, dst_type, block_size, scale_alg, dst_type_max, max_low_bound):
    name = _mx.check(round_mode, dst_type, scale_alg or 0, ALGORITHMS)
    must.dtype("input", input, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("input", input, 1, 7)
    must.hold(
        -input.dim() <= axis < input.dim(),
        "axis",
        f"from {-input.dim()} to {input.dim() - 1}",
        axis,
    )
    fits = 0 < block_size <= 1024 and block_size % 32 == 0
    must.hold(fits, "block_size", "a multiple of 32 from 32 to 1024", block_size)
    if input.dtype == torch.float32 or scale_alg == 2:
        must.choice("block_size", block_size, (32,))
    if input.dtype == torch.float32:
        size = input.shape[axis]
        must.hold(size >= 32, "input", "of at least 32 elements along 'axis' in float32", size)
    _mx.check_even("input", input, name)
    _mx.check_limit("dst_type_max", dst_type_max, name)
    if scale_alg != 1:
        must.hold(max_low_bound == 0, "max_low_bound", "0 unless 'scale_alg' is 1", max_low_bound)
    must.hold(max_low_bound >= 0, "max_low_bound", "0 or positive", max_low_bound)


npu_dynamic_mx_quant.samples = [
    Sample(lambda make: (make(4, 128, dtype=torch.bfloat16),)),
    Sample(
        lambda make: (make(3, 70, dtype=torch.float16),),
        {"dst_type": torch.float8_e4m3fn, "scale_alg": 1, "max_low_bound": 0.5},
    ),
    Sample(
        lambda make: (make(2, 48, 6),),
        {"axis": 1, "round_mode": "floor", "scale_alg": 2, "dst_type_max": 7.0},
    ),
]
