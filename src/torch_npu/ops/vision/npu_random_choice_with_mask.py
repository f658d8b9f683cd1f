"""npu_random_choice_with_mask: some of the places where a mask holds, in random order."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, kernel_generator, npu_op


def _generator(seed: int, seed2: int) -> torch.Generator | None:
    """A generator of the two seeds, or the device's if both are 0."""
    if seed == 0 and seed2 == 0:
        return kernel_generator()
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + seed2) % 2**63)


@npu_op(
    "npu_random_choice_with_mask(Tensor x, int count=256, int seed=0, int seed2=0) -> (Tensor, Tensor)",
    random=True,
    aclop=True,
)
def npu_random_choice_with_mask(x, count, seed, seed2):
    """Indices of elements that are True, drawn without repetition, in random order.

    Args:
        x: the mask, bool, of 1 to 5 dimensions.
        count: how many to draw, at least 1.
        seed: with `seed2`, fixes what is drawn; both 0 draws from the device's generator.
        seed2: see `seed`.

    Returns:
        y, int32 of shape (count, x.dim()), the indices; and mask, bool of shape (count,), which of them are
        valid: where fewer than `count` elements are True, the rest of y is 0 and of mask False.

    Constraints:
        Upstream's host code refuses count = 0, which its page documents.

    Differs from upstream: other elements are drawn than on the card for the same seeds.
    """
    places = x.nonzero().int()
    order = torch.randperm(len(places), generator=_generator(seed, seed2))
    drawn = places[order[:count]]
    y = torch.zeros(count, x.dim(), dtype=torch.int32, device=x.device)
    y[: len(drawn)] = drawn
    return y, torch.arange(count, device=x.device) < len(drawn)


@npu_random_choice_with_mask.check
def _(x, count):
    must.dtype("x", x, torch.bool)
    must.ndim("x", x, 1, 5)
    must.hold(count > 0, "count", "at least 1", count)


@npu_random_choice_with_mask.meta
def _(x, count):
    return x.new_empty(count, x.dim(), dtype=torch.int32), x.new_empty(count)


npu_random_choice_with_mask.samples = [
    Sample(lambda make: (make(8, dtype=torch.bool), 5, 1)),
    Sample(lambda make: (make(3, 4, dtype=torch.bool), 4), {"seed": 3, "seed2": 5}),
    Sample(lambda make: (make(6, dtype=torch.bool), 9, -2)),
]
