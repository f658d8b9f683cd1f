"""The formula of training attention and of its gradients: dense, segment by segment, the oracle of the native form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_npu.ops._math import wide
from torch_npu.ops.attention import _dropout, _layouts, _masks
from torch_npu.ops.attention._fusion import ALIBI_SQRT, EMPTY, Attention, Gradients, Saved


def formula(a: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """attention_out, softmax_max and softmax_sum, segment by segment."""
    out, peak, total = a.outputs()
    if a.nothing:
        return out, peak, total
    rows_out = _layouts.heads_first(out, a.layout, a.heads)
    for part in _parts(a):
        scores = part.scores()
        bottom = scores.new_full(
            (*scores.shape[:2], 1), -torch.inf
        )  # so that no keys have a largest too
        largest = torch.cat([scores, bottom], -1).amax(-1, keepdim=True)
        if part.sink is not None:
            largest = torch.maximum(largest, part.sink)
        empty = largest == -torch.inf
        weights = (scores - largest.masked_fill(empty, 0)).exp()
        summed = weights.sum(-1, keepdim=True)
        if part.sink is not None:
            summed = summed + (part.sink - largest).exp()
        weights = weights / summed.masked_fill(empty, 1)
        rows_out[part.rows] = part.times(part.dropped(weights), part.v).to(out.dtype)
        a.as_rows(peak)[part.rows] = largest.masked_fill(empty, -EMPTY).expand(
            -1, -1, _layouts.COPIES
        )
        a.as_rows(total)[part.rows] = summed.masked_fill(empty, EMPTY).expand(
            -1, -1, _layouts.COPIES
        )
    return out, a.stored(peak), a.stored(total)


def formula_gradients(a: Attention, saved: Saved) -> dict[str, torch.Tensor | None]:
    """The gradients of query, key, value, pse, sink and the rope parts."""
    peak, total, out = saved.of_forward()
    peak, total = a.loaded(peak), a.loaded(total)
    grads = Gradients(a)
    if a.nothing:
        return grads.by_name()
    dy = _layouts.heads_first(saved.dy, a.layout, a.heads)
    out = _layouts.heads_first(out, a.layout, a.heads)
    for part in _parts(a):
        largest, summed = peak[part.rows][..., :1], total[part.rows][..., :1]
        weights = (part.scores() - largest).exp() / summed
        grad = wide(dy[part.rows])
        delta = (grad * wide(out[part.rows])).sum(-1, keepdim=True)
        grads.dv[part.columns] = part.over_group(part.dropped(weights).mT @ grad).to(grads.dv.dtype)
        dscores = weights * (part.dropped(part.times(grad, part.v.mT)) - delta)
        grads.dq[part.rows] = (part.times(dscores, part.k) * a.scale).to(grads.dq.dtype)
        grads.dk[part.columns] = part.over_group(dscores.mT @ part.q * a.scale).to(grads.dk.dtype)
        if part.sink is not None and grads.dsink is not None:
            grads.dsink -= ((part.sink - largest).exp() / summed * delta).sum((1, 2))
        part.add_pse_gradient(grads.dpse, dscores)
    return grads.by_name()


@dataclass
class _Part:
    """One segment of a problem, in the precision of the computation."""

    a: Attention
    index: int
    first: int  # of its positions in the dropout sequence
    rows: Any
    columns: Any

    def __post_init__(self) -> None:
        a = self.a
        self.q, self.k, self.v = (
            wide(a.q[self.rows]),
            wide(a.k[self.columns]),
            wide(a.v[self.columns]),
        )
        self.sink = None if a.sink is None else wide(a.sink).to(self.q.dtype).view(-1, 1, 1)

    def times(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """left @ right, where a head of `right` serves a group of heads of `left`."""
        return left @ right.repeat_interleave(self.a.heads // self.a.kv_heads, 0)

    def over_group(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(0, (self.a.kv_heads, -1)).sum(1)

    def of_batch(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self.index if tensor.shape[0] > 1 else 0]

    def scores(self) -> torch.Tensor:
        """(N, Sq, Skv), -inf where masked."""
        a = self.a
        scores = self.times(self.q, self.k.mT) * a.scale
        if a.slopes is not None:
            scores = scores + self.of_batch(a.slopes).view(-1, 1, 1) * self.distances(scores)
        elif a.pse is not None:
            scores = scores + a.bias_scale * self.of_batch(wide(a.pse))[self.pse_index(scores)]
        rows, columns = scores.shape[1:]
        hidden = _masks.hidden_by_band(a.bands[self.index], rows, columns, scores.device)
        if a.mask is not None:
            hidden = hidden | self.of_batch(a.mask)[:, :rows, :columns].bool()
        return scores.masked_fill(hidden, -torch.inf)

    def distances(self, scores: torch.Tensor) -> torch.Tensor:
        """-|j + shift - i|, or minus its square root: what the slopes multiply."""
        i = torch.arange(scores.shape[1], device=scores.device).unsqueeze(1)
        far = (torch.arange(scores.shape[2], device=scores.device) + self.a.shift - i).abs()
        return (
            -far.to(scores.dtype).sqrt() if self.a.pse_type == ALIBI_SQRT else -far.to(scores.dtype)
        )

    def pse_index(self, scores: torch.Tensor) -> tuple[Any, ...]:
        """Where in (N, rows, columns) of pse the bias of each position stands."""
        assert self.a.pse is not None
        height, width = self.a.pse.shape[2:]
        i = torch.arange(scores.shape[1], device=scores.device).unsqueeze(1)
        j = torch.arange(scores.shape[2], device=scores.device)
        if not self.a.toeplitz:
            return slice(None), i % height, j
        row = i.clamp(min=width - height)  # below it only i - j matters
        # To the right of the diagonal a row may end: those positions are masked.
        return slice(None), row - (width - height), (j + row - i).clamp(max=width - 1)

    def add_pse_gradient(self, dpse: torch.Tensor | None, dscores: torch.Tensor) -> None:
        if dpse is None:
            return
        if self.a.slopes is not None:
            slopes = dpse if dpse.dim() == 2 else dpse[None]
            self.of_batch(slopes).add_((dscores * self.distances(dscores)).sum((1, 2)))
            return
        heads, rows, columns = self.pse_index(dscores)
        rows, columns = torch.broadcast_tensors(rows, columns)
        places = (torch.arange(self.a.heads, device=dscores.device).view(-1, 1, 1), rows, columns)
        self.of_batch(dpse).index_put_(places, dscores * self.a.bias_scale, accumulate=True)

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        """x / keep_prob where kept, 0 elsewhere."""
        a = self.a
        if a.keep_prob >= 1:
            return x
        end = self.first + x.numel()
        if a.dropout_mask is not None:
            keep = _dropout.unpacked(a.dropout_mask, end)
        else:
            keep = _dropout.kept(end, a.seed, a.offset, a.keep_prob, x.device)
        return torch.where(keep[self.first :].view(x.shape), x / a.keep_prob, 0)


def _parts(a: Attention) -> Iterator[_Part]:
    first = 0
    for index, s in enumerate(a.segments):
        batch = 0 if a.layout == "TND" else index
        rows = (batch, slice(None), slice(s.q_start, s.q_start + s.q_length))
        columns = (batch, slice(None), slice(s.kv_start, s.kv_start + s.kv_length))
        yield _Part(a, index, first, rows, columns)
        first += a.heads * s.q_length * s.kv_length
