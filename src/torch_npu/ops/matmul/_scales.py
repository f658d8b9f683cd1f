"""Scales as the card takes them: fp32, bf16, or packed into 64 bits by npu_trans_quant_param.

A packed word has an fp32 scale of 19 significant bits below bit 32 and, for int8 results, an offset
of 9 bits at bit 37.
"""

from __future__ import annotations

import torch

from torch_npu.ops.quant._rounding import saturate
from torch_npu.ops.quant.npu_trans_quant_param import npu_trans_quant_param

PACKED = (torch.int64, torch.uint64)

_OFFSET_AT, _OFFSET_BITS = 37, 9


def scale_of(values: torch.Tensor) -> torch.Tensor:
    """The fp32 scale, whether it comes as a float or packed."""
    if values.dtype not in PACKED:
        return values.float()
    words = values.contiguous().view(torch.int32)
    return words[..., 0::2].contiguous().view(torch.float32)


def offset_of(values: torch.Tensor) -> torch.Tensor:
    """The offset inside packed scales, as fp32."""
    bits = values.contiguous().view(torch.int64) >> _OFFSET_AT
    sign = 1 << (_OFFSET_BITS - 1)
    return (((bits & (2 * sign - 1)) ^ sign) - sign).float()


def packed(scale: torch.Tensor, offset: torch.Tensor | None = None) -> torch.Tensor:
    """Packed scales as they are, float ones packed, as the card does before int8 results."""
    return (
        scale if scale.dtype in PACKED else npu_trans_quant_param.kernel(scale.float(), offset, 0)
    )


def requantise(
    values: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None
) -> torch.Tensor:
    """values * scale + offset in int8, half to even, saturated; packed scales have an offset."""
    words = packed(scale, offset)
    return saturate(values.float() * scale_of(words) + offset_of(words), torch.int8)
