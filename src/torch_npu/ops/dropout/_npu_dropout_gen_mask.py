"""_npu_dropout_gen_mask: a bit mask from a given seed and offset."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dropout_mask as _mask


@npu_op(
    "_npu_dropout_gen_mask.Tensor(Tensor self, int[] size, float p, int seed, int offset, *,"
    " bool? parallel=True, bool? sync=None) -> Tensor"
)
def _npu_dropout_gen_mask_Tensor(self, size, p, seed, offset):
    r"""A dropout bit mask that depends on nothing but its arguments.

    $$ P(m_i = 0) = p $$

    Args:
        self: tells the device; its values are not read.
        size: the shape of the tensor that the mask is for.
        p: the probability of dropping an element, from 0 to 1.
        seed: the seed of the random numbers.
        offset: the position in the sequence of the seed; the same pair gives the same mask.
        parallel, sync: how upstream schedules the task (a second stream, and whether to wait for
            it); they do not change the result, and here the task runs on the current stream.

    Returns:
        uint8 of ceil(numel / 128) * 16 bytes; bit i, the lowest of a byte first, keeps element i.

    Differs from upstream: the same seed and offset give other bits than on the card.
    """
    # The bits that attention draws for the same pair, so that a mask made here can stand for them.
    bits = torch.empty(_mask.aligned(math.prod(size)) // 8, dtype=torch.uint8, device=self.device)
    torch.ops.softnpu.dropout_bits(seed, offset, 1 - p, bits)
    return bits


@_npu_dropout_gen_mask_Tensor.check
def _(size, p, offset, parallel, sync):
    must.hold(all(s >= 0 for s in size), "size", "a list of sizes", list(size))
    must.countable("size", math.prod(size) + _mask.ALIGNMENT, list(size))
    _mask.check_probability(p)
    must.hold(offset >= 0, "offset", "not negative", offset)
    must.choice("parallel", parallel, (None, False, True))
    must.choice("sync", sync, (None, False, True))


@_npu_dropout_gen_mask_Tensor.meta
def _(self, size):
    return self.new_empty(_mask.aligned(math.prod(size)) // 8, dtype=torch.uint8)


_npu_dropout_gen_mask_Tensor.samples = [
    Sample(lambda make: (make(17, 19), [17, 19], 0.4, 1, 0)),
    Sample(lambda make: (make(32, 16), [32, 16], 0.7, 2, 100), {"parallel": False}),
]
