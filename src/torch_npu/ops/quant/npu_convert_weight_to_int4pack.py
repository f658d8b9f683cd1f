"""npu_convert_weight_to_int4pack: eight int4 weights in one int32."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats, _packing
from torch_npu.ops._shared._indices import first_bad

_FLOAT4 = "float4_e2m1fn_x2"


@npu_op("npu_convert_weight_to_int4pack(Tensor weight, int inner_k_tiles=0) -> Tensor")
def npu_convert_weight_to_int4pack(weight):
    r"""Packs weights that fit into 4 bits, eight along the last dimension into 32 bits.

    $$ out_{i,j} = \sum_{b=0}^{7} (w_{i,8j+b} \mathbin{\&} 15) \ll 4b $$

    Args:
        weight: int32 of shape (k, n) or (n, k) with values in [-8, 7]; the last dimension divisible by 8, contiguous,
            not empty. Ascend950 also takes 3 dimensions, and float32 with values of float4_e2m1 (0, 0.5, 1, 1.5, 2,
            3, 4, 6 and their negatives).
        inner_k_tiles: of no effect; upstream takes any number and reads none.

    Returns:
        The dtype of `weight`, the last dimension an eighth; the first value lies in the lowest bits.

    Differs from upstream: a value that does not fit raises; upstream keeps the low four bits of an integer and writes
    0 for a float.
    """
    if weight.dtype == torch.int32:
        return _packing.pack_int4(weight)
    return _formats.encode(weight, _FLOAT4).view(torch.float32)


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
    if not must.has_data(weight):
        return
    host = weight.cpu()
    if host.dtype == torch.int32:
        first_bad("weight", "in [-8, 7]", host, (host < -8) | (host > 7))
    else:
        nearest = _formats.decode(_formats.encode(host, _FLOAT4), _FLOAT4)
        first_bad("weight", "a value of float4_e2m1", host, nearest != host)


npu_convert_weight_to_int4pack.samples = [
    Sample(lambda make: (make(4, 16, dtype=torch.int32, low=-8, high=8),)),
    Sample(lambda make: (make(3, 8, dtype=torch.int32, low=-8, high=8),), {"inner_k_tiles": 1}),
]
