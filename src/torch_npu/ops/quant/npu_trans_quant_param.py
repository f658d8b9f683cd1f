"""npu_trans_quant_param: a float32 scale and an offset packed into the 64 bits that the matrix unit reads."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _scales


@npu_op(
    "npu_trans_quant_param(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor",
    ge="TransQuantParamV2",
)
def npu_trans_quant_param(scale, offset, round_mode):
    r"""Packs scales, and offsets if given, into the int64 parameters of the quantized matmuls.

    $$ out = (scale_{bits} \mathbin{\&} \mathtt{0xFFFFE000}) \mathbin{|} (1 \ll 46)
       \mathbin{|} ((\mathrm{clamp}(\mathrm{round}(offset), -256, 255) \mathbin{\&} \mathtt{0x1FF}) \ll 37) $$

    Args:
        scale: float32, 1 or 2 dimensions, contiguous, not empty.
        offset: float32. For a `scale` of one dimension: one dimension, and where neither has one element, as many; for
            (1, n): the same shape. Rounds halves to even.
        round_mode: 0 cuts the scale off after its upper 19 bits, 1 rounds it to them, halves to even.

    Returns:
        int64 in the shape of `scale`; for one dimension as long as the longer of `scale` and `offset`.

    Constraints:
        With `offset`, a `scale` of 2 dimensions has the shape (1, n).

    Differs from upstream: in a graph the result is int64 too, where upstream's graph has uint64.
    """
    return _scales.pack(scale, offset, round_mode == 1)


@npu_trans_quant_param.check
def _(scale, offset, round_mode):
    must.dtype("scale", scale, torch.float32)
    must.ndim("scale", scale, 1, 2)
    must.dtype("offset", offset, torch.float32)
    must.choice("round_mode", round_mode, (None, 0, 1))
    for name, tensor in (("scale", scale), ("offset", offset)):
        if tensor is not None:
            shape = tuple(tensor.shape)
            must.hold(tensor.numel() > 0, name, "not empty", shape, ErrCode.PARAM)
            must.hold(tensor.is_contiguous(), name, "contiguous", f"strides {tensor.stride()}")
    if offset is None:
        return
    if scale.dim() == 2:
        must.hold(
            scale.shape[0] == 1, "scale", "of shape (1, *)", tuple(scale.shape), ErrCode.PARAM
        )
        must.shape("offset", offset, tuple(scale.shape))
    else:
        must.ndim("offset", offset, 1)
        n, m = scale.shape[0], offset.shape[0]
        must.hold(n == m or 1 in (n, m), "offset", f"of shape (1) or ({n})", (m,), ErrCode.PARAM)


npu_trans_quant_param.samples = [
    Sample(lambda make: (make(16),)),
    Sample(lambda make: (make(1, 16), make(1, 16, low=-300, high=300)), {"round_mode": 1}),
    Sample(lambda make: (make(1), make(8, low=-9, high=9))),
]
