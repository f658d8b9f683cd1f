"""_npu_group_topk: scores of all but the best groups of experts become 0, in place."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules


@npu_op(
    "atb::_npu_group_topk(Tensor self, int k=0, int group_num=1, int n=1) -> ()", ge="GroupTopk"
)
def _npu_group_topk(self, k, group_num, n):
    """Keeps the scores of the `k` best groups of each token and sets the others to 0, in place.

    A group's worth is the sum of its `n` largest scores; of equal groups the first ones are kept.

    Args:
        self: (tokens, experts), float16 or bfloat16, written (upstream's schema does not say so).
        k: groups that are kept, 1 to `group_num`.
        group_num: groups of consecutive experts, a divisor of their number; at most 1024 experts.
        n: scores that make a group's worth, up to the experts of a group; less than 1 counts as 1.

    Returns:
        Nothing.
    """
    self.masked_fill_(dropped(self.float(), k, group_num, max(n, 1)), 0)


def dropped(scores: torch.Tensor, k: int, group_num: int, n: int) -> torch.Tensor:
    """(tokens, experts) bool: which experts are in none of the `k` best groups."""
    tokens, experts = scores.shape
    grouped = scores.view(tokens, group_num, experts // group_num)
    worth = grouped.topk(n, -1).values.sum(-1)
    order = torch.sort(worth, dim=-1, descending=True, stable=True).indices
    worse = torch.ones_like(worth, dtype=torch.bool).scatter_(1, order[:, :k], False)
    return worse.repeat_interleave(experts // group_num, 1)


@_npu_group_topk.check
def _(self, k, group_num, n):
    rules.family("self", "A2", "A3")
    must.dtype("self", self, *rules.FLOATS)
    must.ndim("self", self, 2)
    experts = self.shape[1]
    must.hold(1 <= experts <= 1024, "self", "of 1 to 1024 experts", experts)
    rules.written("self", self)
    divides = group_num >= 1 and experts % group_num == 0
    must.hold(divides, "group_num", f"a divisor of {experts} experts", group_num)
    must.hold(1 <= k <= group_num, "k", f"from 1 to {group_num} groups", k)
    size = experts // group_num
    must.hold(n <= size, "n", f"at most {size}, the experts of a group", n)


@_npu_group_topk.meta
def _():
    return None


_npu_group_topk.samples = [
    Sample(lambda make: (make(5, 16, dtype=torch.float16), 2, 4, 1)),
    Sample(lambda make: (make(3, 12, dtype=torch.bfloat16),), {"k": 1, "group_num": 3, "n": 2}),
]
