"""npu_stride_add: a sum of two slices of channels."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op

#: channels of a block of the format NC1HWC0
BLOCK = 16


def _channels(x, first, count):
    """Channels [first, first + count) of the second dimension; those that x lacks are zero."""
    taken = x[:, first : first + count]
    return torch.nn.functional.pad(taken, (0, 0) * (x.dim() - 2) + (0, count - taken.shape[1]))


@npu_op(
    "npu_stride_add(Tensor self, Tensor other, Scalar offset1, Scalar offset2, Scalar c1_len)"
    " -> Tensor",
    aclop=True,
)
def npu_stride_add(self, other, offset1, offset2, c1_len):
    r"""The sum of a slice of channels of each tensor; offsets and length count blocks of 16 channels.

    $$ y_{n, c} = x_{n,\, 16 o_1 + c} + z_{n,\, 16 o_2 + c}, \quad 0 \le c < 16\, \mathrm{len} $$

    where channels past the end of x or z are zero within their last block.

    Args:
        self: x, (N, C, ...); float16 or float32 (bfloat16 too on Ascend950).
        other: z, of the dtype of `self` and of its sizes but C.
        offset1: o1, the first block of `self`.
        offset2: o2, the first block of `other`.
        c1_len: len, the number of blocks; offset and length end inside the ceil(C / 16) blocks of either tensor.

    Returns:
        y, with 16 len channels.
    """
    count = BLOCK * int(c1_len)
    one = _channels(self, BLOCK * int(offset1), count)
    return one + _channels(other, BLOCK * int(offset2), count)


@npu_stride_add.check
def _(self, other, offset1, offset2, c1_len):
    more = (torch.bfloat16,) if chips.current().family == "A5" else ()
    must.dtype("self", self, torch.float16, torch.float32, *more)
    must.same_dtype("other", other, "self", self)
    must.ndim("self", self, 2, 8)
    must.shape("other", other, (self.shape[0], None, *self.shape[2:]))
    must.hold(c1_len > 0, "c1_len", "positive", c1_len)
    for name, value, tensor in (("offset1", offset1, self), ("offset2", offset2, other)):
        must.hold(value >= 0, name, "not negative", value)
        last = -(-tensor.shape[1] // BLOCK) - int(c1_len)
        must.hold(value <= last, name, f"at most {last} for {c1_len} blocks", value)


npu_stride_add.samples = [
    Sample(lambda make: (make(2, 32, 3, 3), make(2, 48, 3, 3), 1, 2, 1)),
    Sample(lambda make: (make(1, 1, 1, 1, 1), make(1, 1, 1, 1, 1), 0, 0, 1)),
]
