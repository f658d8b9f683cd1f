"""The code of npu_hans_encode: the byte of each number that holds its exponent takes 4 bits where it is a frequent one.

The bits of a number are rotated by one, so that the sign comes last and the exponent first. The lower bytes are kept as
they are. Of the highest bytes, the 15 most frequent are written as 4-bit indices; 15 stands for any other, which follows
after all indices as it is. These three parts, one after the other, fill the mantissa buffer up to what the lower bytes
need, then the fixed buffer, then the variable one. Upstream publishes no description of its own code; sizes are the ones
that its test and MindSpeed allocate.
"""

from __future__ import annotations

import torch

ESCAPE = 15
_INTEGER = {4: torch.int32, 2: torch.int16}


def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest byte of each rotated number (int64), and the lower bytes (uint8, lowest first)."""
    size = x.element_size()
    bits = x.contiguous().view(_INTEGER[size]).flatten().long() & (2 ** (8 * size) - 1)
    rotated = ((bits << 1) | (bits >> (8 * size - 1))) & (2 ** (8 * size) - 1)
    lower = [(rotated >> (8 * i)) & 255 for i in range(size - 1)]
    return rotated >> (8 * (size - 1)), torch.stack(lower, -1).to(torch.uint8).flatten()


def join(high: torch.Tensor, lower: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse of `split`, in the shape and type of `like`."""
    size = like.element_size()
    rotated = high << (8 * (size - 1))
    parts = lower.view(-1, size - 1).long()
    for i in range(size - 1):
        rotated = rotated | (parts[:, i] << (8 * i))
    bits = (rotated >> 1) | ((rotated & 1) << (8 * size - 1))
    half = 2 ** (8 * size - 1)
    signed = torch.where(bits >= half, bits - 2 * half, bits)
    return signed.to(_INTEGER[size]).view(like.dtype).view(like.shape)


def frequent(pdf: torch.Tensor) -> torch.Tensor:
    """The 15 most frequent bytes by their counts."""
    return torch.sort(pdf.long(), descending=True, stable=True).indices[:ESCAPE]


def encode(high: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """4-bit indices, two to a byte, then the bytes that are not in the table."""
    index = torch.full((256,), ESCAPE, device=high.device).scatter(
        0, table, torch.arange(ESCAPE, device=high.device)
    )
    codes = index[high]
    even = torch.nn.functional.pad(codes, (0, codes.shape[0] % 2)).view(-1, 2)
    packed = (even[:, 0] | (even[:, 1] << 4)).to(torch.uint8)
    return torch.cat((packed, high[codes == ESCAPE].to(torch.uint8)))


def decode(stream: torch.Tensor, count: int, table: torch.Tensor) -> torch.Tensor:
    """The inverse of `encode`: the highest bytes of `count` numbers (int64)."""
    packed = stream[: (count + 1) // 2].long()
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten()[:count]
    table = torch.cat((table, table.new_zeros(1)))
    high, escaped = table[codes], codes == ESCAPE
    start = (count + 1) // 2
    high[escaped] = stream[start : start + int(escaped.sum())].long()
    return high


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().flatten().view(torch.uint8)
