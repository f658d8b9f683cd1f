"""Attention over blocks of keys that a mask chooses for each block of queries, and its gradient.

One block of queries of one head at a time: its keys are those of the chosen blocks, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from torch_npu.ops._math import wide


@dataclass
class Problem:
    """Tensors of the operator, and where its sequences stand."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor
    block_shape: Sequence[int]
    layout: str
    lengths: list[int] | None
    kv_lengths: list[int] | None
    scale: float

    def by_head(self, tensor: torch.Tensor, index: int, keys: bool = False) -> torch.Tensor:
        """A view (N, S, D) of one sequence."""
        given = self.kv_lengths if keys else self.lengths
        if self.layout == "BNSD":
            size = tensor.shape[2] if given is None else given[index]
            return tensor[index, :, :size]
        if self.layout == "BSND":
            size = tensor.shape[1] if given is None else given[index]
            return tensor[index, :size].transpose(0, 1)
        assert given is not None  # TND has lengths
        start = sum(given[:index])
        return tensor[start : start + given[index]].transpose(0, 1)

    @property
    def batch(self) -> int:
        if self.layout != "TND":
            return self.query.shape[0]
        assert self.lengths is not None
        return len(self.lengths)

    def blocks(self) -> Iterator[tuple[int, int, int, slice, torch.Tensor]]:
        """(sequence, head, key head, rows, positions of the chosen keys)."""
        high, wide_ = self.block_shape[:2]
        heads = self.query.shape[2 if self.layout == "BSND" else 1]
        for index in range(self.batch):
            rows = self.by_head(self.query, index).shape[1]
            keys = self.by_head(self.key, index, True)
            group, columns = heads // keys.shape[0], torch.arange(keys.shape[1])
            for head in range(heads):
                for number, top in enumerate(range(0, rows, high)):
                    chosen = self.mask[index, head, number] != 0
                    place = columns[chosen[columns // wide_]]
                    part = slice(top, min(rows, top + high))
                    yield index, head, head // group, part, place


def forward(p: Problem, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    """Writes the attention, and the logsumexp where asked; rows without keys stay 0."""
    for index, head, kv_head, part, place in p.blocks():
        if place.numel() == 0:
            continue
        query = wide(p.by_head(p.query, index)[head, part])
        scores = query @ wide(p.by_head(p.key, index, True)[kv_head, place]).t() * p.scale
        weights = scores.softmax(-1)
        found = weights @ wide(p.by_head(p.value, index, True)[kv_head, place])
        p.by_head(out, index)[head, part] = found.to(out.dtype)
        if lse is not None:
            p.by_head(lse, index)[head, part, 0] = scores.logsumexp(-1)


def backward(p: Problem, grad, out, lse) -> tuple[torch.Tensor, ...]:
    """Gradients of query, key and value, in fp32."""
    made = [torch.zeros(t.shape, dtype=wide(t).dtype) for t in (p.query, p.key, p.value)]
    for index, head, kv_head, part, place in p.blocks():
        if place.numel() == 0:
            continue
        query = wide(p.by_head(p.query, index)[head, part])
        key = wide(p.by_head(p.key, index, True)[kv_head, place])
        value = wide(p.by_head(p.value, index, True)[kv_head, place])
        sums = p.by_head(lse, index)[head, part]
        weights = (query @ key.t() * p.scale - sums).exp()
        outer = wide(p.by_head(grad, index)[head, part])
        inner = (outer * wide(p.by_head(out, index)[head, part])).sum(-1, keepdim=True)
        of_scores = weights * (outer @ value.t() - inner) * p.scale
        p.by_head(made[0], index)[head, part] = of_scores @ key
        p.by_head(made[1], index, True)[kv_head].index_add_(0, place, of_scores.t() @ query)
        p.by_head(made[2], index, True)[kv_head].index_add_(0, place, weights.t() @ outer)
    return tuple(made)
