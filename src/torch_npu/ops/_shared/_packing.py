"""int4 values in bytes and words, as the device lays them out: the lowest nibble holds the first value.

An int32 carries eight values, a byte two. Values are two's complement, -8 to 7.
"""

from __future__ import annotations

import torch

#: int4 values that one int32 carries
PER_WORD = 8


def pack_int4(values: torch.Tensor, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Packs integers in [-8, 7] along the last dimension: 8 to an int32, or 2 to an int8 or uint8.

    The last dimension must be a multiple of 8 (or 2). Values outside the range keep their low four bits.
    """
    if values.is_floating_point():
        raise TypeError(f"pack_int4 packs integers, not {values.dtype}")
    if values.shape[-1] == 0:  # bytes of nothing cannot be viewed as words
        return values.new_empty(values.shape, dtype=dtype)
    nibbles = values.to(torch.uint8) & 0xF
    pairs = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    return pairs.contiguous().view(dtype)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """The int4 values of an int32, int8 or uint8 tensor, as int8; the last dimension grows 8 or 2 times."""
    if packed.dtype not in (torch.int32, torch.int8, torch.uint8):
        raise TypeError(f"unpack_int4 reads int32, int8 or uint8, not {packed.dtype}")
    if packed.shape[-1] == 0:
        return packed.new_empty(packed.shape, dtype=torch.int8)
    pairs = packed.contiguous().view(torch.int8)
    low = (pairs << 4) >> 4
    return torch.stack((low, pairs >> 4), dim=-1).flatten(-2)
