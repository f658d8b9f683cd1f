"""npu_convert_weight_to_int4pack: eight int4 weights in one int32."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats, _packing

_FLOAT4 = "float4_e2m1fn_x2"
#: the bits of a float32 that the host code of CANN looks at: sign, exponent, one bit of the fraction
_KEPT = 0xFFC00000 - 2**32


@npu_op("npu_convert_weight_to_int4pack(Tensor weight, int inner_k_tiles=0) -> Tensor")
def npu_convert_weight_to_int4pack(weight):
    r"""Packs weights that fit into 4 bits, eight along the last dimension into 32 bits.

    $$ out_{i,j} = \sum_{b=0}^{7} (w_{i,8j+b} \mathbin{\&} 15) \ll 4b $$

    Args:
        weight: int32 of shape (k, n) or (n, k) with values in [-8, 7], of others the low four bits count; the last
            dimension divisible by 8, contiguous, not empty. Ascend950 also takes 3 dimensions, and float32 with values
            of float4_e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives); of others the sign, the exponent and the
            highest bit of the fraction count, and what is no such value then becomes 0.
        inner_k_tiles: of no effect; upstream takes any number and reads none.

    Returns:
        The dtype of `weight`, the last dimension an eighth; the first value lies in the lowest bits.
    """
    if weight.dtype == torch.int32:
        return _packing.pack_int4(weight)
    cut = (weight.view(torch.int32) & _KEPT).view(torch.float32)
    known = _formats.decode(_formats.encode(cut, _FLOAT4), _FLOAT4) == cut
    return _formats.encode(torch.where(known, cut, 0.0), _FLOAT4).view(torch.float32)


@npu_convert_weight_to_int4pack.check
def _(weight, inner_k_tiles):
    new = _chip.on_950()
    must.dtype("weight", weight, torch.int32, *((torch.float32,) if new else ()))
    must.ndim("weight", weight, 2, 3 if new else 2)
    shape = tuple(weight.shape)
    must.hold(weight.numel() > 0, "weight", "not empty", shape, ErrCode.PARAM)
    must.hold(
        shape[-1] % 8 == 0, "weight", "of a last dimension divisible by 8", shape, ErrCode.PARAM
    )
    must.hold(weight.is_contiguous(), "weight", "contiguous", f"strides {weight.stride()}")
    must.anything(inner_k_tiles)


npu_convert_weight_to_int4pack.samples = [
    Sample(lambda make: (make(4, 16, dtype=torch.int32, low=-8, high=8),)),
    Sample(lambda make: (make(3, 8, dtype=torch.int32, low=-8, high=8),), {"inner_k_tiles": 1}),
]
