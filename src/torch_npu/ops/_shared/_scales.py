"""Scales as the card takes them: fp32, bf16, or packed into 64 bits by npu_trans_quant_param.

A packed word has an fp32 scale of 19 significant bits below bit 32 and, for int8 results, an offset
of 9 bits at bit 37.
"""

from __future__ import annotations

import torch

from torch_npu.ops._shared._rounding import saturate

PACKED = (torch.int64, torch.uint64)

_KEPT = 0xFFFFE000  # sign, exponent and 10 bits of the mantissa: a 19-bit float
_EXPONENT = 0x7F800000
_TAIL = 13
_MARK = 1 << 46
_OFFSET_AT, _OFFSET_BITS = 37, 9


def scale_of(values: torch.Tensor) -> torch.Tensor:
    """The fp32 scale, whether it comes as a float or packed."""
    if values.dtype not in PACKED:
        return values.float()
    # a copy: one value of a longer tensor is contiguous, whatever its stride, and yet cannot be viewed
    words = values.clone(memory_format=torch.contiguous_format).view(torch.int32)
    return words[..., 0::2].contiguous().view(torch.float32)


def offset_of(values: torch.Tensor) -> torch.Tensor:
    """The offset inside packed scales, as fp32."""
    bits = values.contiguous().view(torch.int64) >> _OFFSET_AT
    sign = 1 << (_OFFSET_BITS - 1)
    return (((bits & (2 * sign - 1)) ^ sign) - sign).float()


def _rounded(bits: torch.Tensor) -> torch.Tensor:
    """The bits of a float32 rounded to its upper 19, halves to even.

    Subnormals become a signed 0; infinities and NaN are cut off, not rounded.
    """
    odd = (bits >> _TAIL) & 1
    exponent = bits & _EXPONENT
    rounded = torch.where(exponent == _EXPONENT, bits, bits + (1 << (_TAIL - 1)) - 1 + odd)
    return torch.where(exponent == 0, bits & 0x80000000, rounded)


def pack(
    scale: torch.Tensor, offset: torch.Tensor | None, to_nearest: bool = False
) -> torch.Tensor:
    """Packed words of float32 scales, cut off or rounded to their upper 19 bits, and of offsets."""
    bits = scale.contiguous().view(torch.int32).long() & 0xFFFFFFFF
    if to_nearest:
        bits = _rounded(bits)
    words = (bits & _KEPT) | _MARK
    if offset is None:
        return words
    sign = 1 << (_OFFSET_BITS - 1)
    whole = saturate(offset, torch.int32).clamp(-sign, sign - 1).long()
    return words | ((whole & (2 * sign - 1)) << _OFFSET_AT)


def packed(scale: torch.Tensor, offset: torch.Tensor | None = None) -> torch.Tensor:
    """Packed scales as they are, float ones packed, as the card does before int8 results."""
    return scale if scale.dtype in PACKED else pack(scale.float(), offset)


def requantize(
    values: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None
) -> torch.Tensor:
    """values * scale + offset in int8, half to even, saturated; packed scales have an offset."""
    words = packed(scale, offset)
    return saturate(values.float() * scale_of(words) + offset_of(words), torch.int8)
