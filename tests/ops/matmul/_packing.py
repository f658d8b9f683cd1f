"""Scales and int4 as the card's words, by plain struct and integer arithmetic: independent of the package."""

from __future__ import annotations

import struct

import torch

#: upstream's number for the type: 256 + ACL_HIFLOAT8
HIFLOAT8 = 290


def hifloat8(byte):
    """The value of a byte: sign, a prefix that tells the number of exponent bits, exponent, mantissa."""
    sign, bits = (-1 if byte >> 7 else 1), f"{byte & 0x7F:07b}"
    for prefix, width in (("11", 4), ("10", 3), ("01", 2), ("001", 1), ("0001", 0)):
        if bits.startswith(prefix):
            exponent, mantissa = bits[len(prefix) :][:width], bits[len(prefix) + width :]
            magnitude = int("1" + exponent[1:], 2) if width else 0
            power = -magnitude if exponent.startswith("1") else magnitude
            return sign * (1 + int(mantissa, 2) / 2 ** len(mantissa)) * 2.0**power
    return sign * 2.0 ** (int(bits, 2) - 23) if int(bits, 2) else 0.0


def pack_scale(scale, offset=None):
    """One int64 for each scale: 19 bits of the float, a mark at bit 46, a 9-bit offset at bit 37."""
    words = []
    offsets = [0] * len(scale) if offset is None else offset
    for value, moved in zip(scale, offsets, strict=True):
        bits = struct.unpack("<I", struct.pack("<f", float(value)))[0] & 0xFFFFE000
        whole = max(-256, min(255, round(float(moved))))
        words.append(bits | (1 << 46) | ((whole & 0x1FF) << 37))
    return torch.tensor(words, dtype=torch.int64)


def cut_scale(scale):
    """The float that `pack_scale` leaves of each scale, in fp64."""
    values = [
        struct.unpack(
            "<f",
            struct.pack("<I", struct.unpack("<I", struct.pack("<f", float(v)))[0] & 0xFFFFE000),
        )[0]
        for v in scale.flatten()
    ]
    return torch.tensor(values, dtype=torch.float64).reshape(scale.shape)


def pack_int4(values):
    """Integers in [-8, 7], eight to an int32 along the last dimension, the first in the lowest bits."""
    *lead, size = values.shape
    nibbles = values.long().reshape(*lead, size // 8, 8) & 15
    words = sum(nibbles[..., i] << (4 * i) for i in range(8))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def to_int8(values):
    """Half to even and saturated, in fp64."""
    return values.round().clamp(-128, 127).to(torch.int8)
