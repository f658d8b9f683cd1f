"""npu_broadcast: a contiguous copy expanded to a size."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.tensor._dims import dense


@npu_op(
    "npu_broadcast(Tensor self, int[] size) -> Tensor",
    out="npu_broadcast.out(Tensor self, int[] size, *, Tensor(a!) out) -> Tensor(a!)",
    aclop=True,
)
def npu_broadcast(self, size):
    r"""Repeats dimensions of size 1, and adds new ones in front, up to the given size.

    $$ out_{\ldots, i_1, \ldots, i_n} = self_{i_1 \bmod s_1, \ldots, i_n \bmod s_n} $$

    Args:
        self: any tensor.
        size: the sizes of the result; each trailing one equals the tensor's, which may be 1.

    Returns:
        A contiguous tensor of shape `size`.
    """
    return dense(self.expand(size))


@npu_broadcast.check
def _(self, size):
    wanted, have = list(size), list(self.shape)
    tail = wanted[len(wanted) - len(have) :]
    fits = len(wanted) >= len(have) and all(s >= 0 for s in wanted)
    fits = fits and all(h in (1, w) for h, w in zip(have, tail, strict=True))
    must.hold(fits, "size", f"sizes that {have} expands to", wanted)


npu_broadcast.samples = [
    Sample(lambda make: (make(3, 1), [3, 4])),
    Sample(
        lambda make: (make(4, dtype=torch.int64, low=0, high=9), [2, 3, 4]), name="new in front"
    ),
    Sample(lambda make: (make(1, 2, dtype=torch.bool), [5, 2])),
]
