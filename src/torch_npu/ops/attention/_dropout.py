"""The dropout of training attention: what is kept is a function of (seed, offset) and the position alone.

Position n is kept when word n % 4 of Philox4x32-10 with key `seed` and counter (n // 4, offset) is below
keep_prob * 2^32; csrc/kernels/attention.h says the same. The backward computes the mask again.
"""

from __future__ import annotations

import torch

from softnpu import _C

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF

#: numbers that upstream takes off its generator for one attention
_TAKEN = 12


def choose(seed: int, offset: int, given: bool, at_replay: bool) -> tuple[int, int]:
    """(seed, offset) of a call: those passed, or the next ones of the device's generator if `seed` is 0.

    Where they leave as numbers, a captured graph keeps them, since the backward does; where they leave as tensors
    (`at_replay`), it draws anew at each replay. It does so for a kernel that draws from `kernel_generator` and that
    depends on numbers the host reads, which is what the two lines in the middle say.
    """
    if given or seed != 0:
        return seed, offset
    generator = _C.default_generator(_C.current_device())
    seed, offset = generator.initial_seed(), generator.get_offset()
    if _C.kernel_generator() is None:  # only shapes are asked for
        return seed, offset
    if at_replay:
        torch.zeros(()).item()
    generator.set_offset(offset + _TAKEN)
    return seed, offset


def kept(
    count: int, seed: int, offset: int, keep_prob: float, device: torch.device
) -> torch.Tensor:
    """`count` booleans: the definition in PyTorch."""
    counter = torch.arange((count + 3) // 4, dtype=torch.int64, device=device)
    x = [counter & _LOW, counter >> 32]
    x += [torch.full_like(counter, offset & _LOW), torch.full_like(counter, offset >> 32 & _LOW)]
    k = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(10):
        (high0, low0), (high1, low1) = (
            _product(x[0], _MULTIPLIERS[0]),
            _product(x[2], _MULTIPLIERS[1]),
        )
        x = [high1 ^ x[1] ^ k[0], low1, high0 ^ x[3] ^ k[1], low0]
        k = [(a + b) & _LOW for a, b in zip(k, _WEYL, strict=True)]
    return (torch.stack(x, 1) < round(keep_prob * 2**32)).flatten()[:count]


def unpacked(bits: torch.Tensor, count: int) -> torch.Tensor:
    """`count` booleans of a bit mask, the lowest bit of a byte first."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits.unsqueeze(-1) >> places) & 1).flatten()[:count].bool()


def _product(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and low 32 bits of the product of 32-bit numbers, in int64 without overflow."""
    low, high = (x & 0xFFFF) * factor, (x >> 16) * factor
    middle = (low >> 16) + (high & 0xFFFF)
    return (high >> 16) + (middle >> 16), ((middle & 0xFFFF) << 16) | (low & 0xFFFF)
