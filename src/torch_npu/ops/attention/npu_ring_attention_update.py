"""npu_ring_attention_update: the attentions of two steps of a ring, merged by their maxima and sums."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules


@npu_op(
    "npu_ring_attention_update(Tensor prev_attn_out, Tensor prev_softmax_max, Tensor prev_softmax_sum, "
    "Tensor cur_attn_out, Tensor cur_softmax_max, Tensor cur_softmax_sum, *, "
    'Tensor? actual_seq_qlen=None, str input_layout="SBH", str input_softmax_layout="") '
    "-> (Tensor, Tensor, Tensor)"
)
def npu_ring_attention_update(
    prev_attn_out,
    prev_softmax_max,
    prev_softmax_sum,
    cur_attn_out,
    cur_softmax_max,
    cur_softmax_sum,
    actual_seq_qlen,
    input_layout,
    input_softmax_layout,
):
    r"""Merges the attention of a step with that of the steps before it.

    $$ m = \max(m_p, m_c), \quad s = s_p e^{m_p - m} + s_c e^{m_c - m}, \quad
       o = \frac{o_p s_p e^{m_p - m} + o_c s_c e^{m_c - m}}{s} $$

    Args:
        prev_attn_out: $o_p$, (S, B, N * D) or in TND (T, N, D); float16, bfloat16 or float32.
        prev_softmax_max: $m_p$, (B, N, S, 8) or in TND (T, N, 8), float32; its last dimension repeats one value.
        prev_softmax_sum: $s_p$, like `prev_softmax_max`.
        cur_attn_out: $o_c$, like `prev_attn_out`.
        cur_softmax_max: $m_c$.
        cur_softmax_sum: $s_c$.
        actual_seq_qlen: in TND, where each sequence begins and the last one ends, from 0 to T; int64.
        input_layout: 'SBH' or 'TND'.
        input_softmax_layout: in TND, how the maxima and sums are ordered: 'TND' by row, '' or 'SBH' by sequence,
            head and row, as npu_fusion_attention returns them.

    Returns:
        o, m and s, like the given ones.

    Constraints: in TND at most 256 heads, and head sizes up to 768, which on Atlas A2 and A3 are multiples of 64.
    """
    top = torch.maximum(prev_softmax_max, cur_softmax_max)
    before = prev_softmax_sum * (prev_softmax_max - top).exp()
    now = cur_softmax_sum * (cur_softmax_max - top).exp()
    total = before + now
    shares = [(before / total)[..., 0], (now / total)[..., 0]]
    if input_layout == "SBH":
        size = prev_attn_out.shape[2] // top.shape[1]
        parts = [t.unflatten(2, (-1, size)) for t in (prev_attn_out, cur_attn_out)]
        shares = [s.permute(2, 0, 1) for s in shares]
    else:
        parts = [prev_attn_out, cur_attn_out]
        if input_softmax_layout != "TND":
            shares = [_by_row(s, actual_seq_qlen) for s in shares]
    out = sum(wide(p) * s.unsqueeze(-1) for p, s in zip(parts, shares, strict=True))
    return out.to(prev_attn_out.dtype).reshape(prev_attn_out.shape), top, total


def _by_row(values, ends):
    """(T, N) whose memory is ordered by sequence, head and row, ordered by row and head."""
    edges, heads = ends.tolist(), values.shape[1]
    found, flat = torch.empty_like(values), values.reshape(-1)
    for start, end in zip(edges, edges[1:], strict=False):
        part = flat[start * heads : end * heads].view(heads, end - start)
        found[start:end] = part.t()
    return found


@npu_ring_attention_update.check
def _(
    prev_attn_out,
    prev_softmax_max,
    prev_softmax_sum,
    cur_attn_out,
    cur_softmax_max,
    cur_softmax_sum,
    actual_seq_qlen,
    input_layout,
    input_softmax_layout,
):
    rules.family("prev_attn_out", "A2", "A3", "A5")
    must.choice("input_layout", input_layout, ("SBH", "TND"))
    must.choice("input_softmax_layout", input_softmax_layout, ("", "SBH", "TND"))
    must.dtype("prev_attn_out", prev_attn_out, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("prev_attn_out", prev_attn_out, 3)
    must.same_dtype("cur_attn_out", cur_attn_out, "prev_attn_out", prev_attn_out)
    must.shape("cur_attn_out", cur_attn_out, tuple(prev_attn_out.shape))
    ragged = input_layout == "TND"
    must.ndim("prev_softmax_max", prev_softmax_max, 3 if ragged else 4)
    if ragged:
        tokens, heads, size = prev_attn_out.shape
        must.shape("prev_softmax_max", prev_softmax_max, (tokens, heads, 8))
        must.hold(heads <= 256, "prev_attn_out", "of at most 256 heads in TND", heads)
        step = 1 if chips.current().family == "A5" else 64
        expected = f"of a head size that is a multiple of {step} up to 768 in TND"
        must.hold(size <= 768 and size % step == 0, "prev_attn_out", expected, size)
        must.present("actual_seq_qlen", actual_seq_qlen, "with input_layout 'TND'")
    else:
        rows, batch, width = prev_attn_out.shape
        must.shape("prev_softmax_max", prev_softmax_max, (batch, None, rows, 8))
        heads = prev_softmax_max.shape[1]
        expected = f"of a last dimension divisible by {heads} heads"
        fits = heads > 0 and width % heads == 0
        must.hold(fits, "prev_attn_out", expected, tuple(prev_attn_out.shape), ErrCode.PARAM)
    named = {
        "prev_softmax_sum": prev_softmax_sum,
        "cur_softmax_max": cur_softmax_max,
        "cur_softmax_sum": cur_softmax_sum,
    }
    must.dtype("prev_softmax_max", prev_softmax_max, torch.float32)
    for name, tensor in named.items():
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, tuple(prev_softmax_max.shape))
    must.dtype("actual_seq_qlen", actual_seq_qlen, torch.int64)
    if ragged and input_softmax_layout != "TND" and must.has_data(actual_seq_qlen):
        edges = actual_seq_qlen.tolist()
        fine = edges == sorted(edges) and edges[:1] == [0] and edges[-1] == prev_attn_out.shape[0]
        expected = f"sums of lengths from 0 to {prev_attn_out.shape[0]}"
        must.hold(fine, "actual_seq_qlen", expected, edges)


@npu_ring_attention_update.meta
def _(prev_attn_out, prev_softmax_max):
    return (
        prev_attn_out.new_empty(prev_attn_out.shape),
        prev_softmax_max.new_empty(prev_softmax_max.shape),
        prev_softmax_max.new_empty(prev_softmax_max.shape),
    )


def _statistics(make, *shape, seed=0, low=-1, high=1):
    return make(*shape, 1, low=low, high=high, seed=seed).expand(*shape, 8).contiguous()


def _step(make, out, rows, seed):
    return (
        make(*out, dtype=torch.bfloat16, seed=seed),
        _statistics(make, *rows, seed=seed),
        _statistics(make, *rows, seed=seed + 5, low=1, high=9),
    )


npu_ring_attention_update.samples = [
    Sample(
        lambda make: (
            *_step(make, (4, 2, 16), (2, 2, 4), 1),
            *_step(make, (4, 2, 16), (2, 2, 4), 2),
        )
    ),
    Sample(
        lambda make: (*_step(make, (5, 2, 64), (5, 2), 1), *_step(make, (5, 2, 64), (5, 2), 2)),
        lambda make: {
            "actual_seq_qlen": make(2, dtype=torch.int64, low=5, high=6).cumsum(0) - 5,
            "input_layout": "TND",
        },
    ),
]
