"""Training attention by csrc/kernels/attention.h, which never holds a matrix of scores."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu.ops.attention import _layouts
from torch_npu.ops.attention._fusion import ALIBI_SQRT, Attention, Gradients, Saved


def _options(a: Attention) -> dict[str, Any]:
    """The problem in the words of csrc/kernels/attention.h."""
    dense = None if a.pse is None or a.slopes is not None else a.pse
    return {
        "scale": a.scale,
        "mask": a.mask,
        "bias": dense,
        "bias_scale": a.bias_scale,
        "bias_toeplitz": a.toeplitz,
        "slopes": a.slopes,
        "slopes_sqrt": a.pse_type == ALIBI_SQRT,
        "slopes_shift": a.shift,
        "sink": a.sink,
        "q_start": [s.q_start for s in a.segments],
        "q_len": [s.q_length for s in a.segments],
        "kv_start": [s.kv_start for s in a.segments],
        "kv_len": [s.kv_length for s in a.segments],
        "band_low": [b.low for b in a.bands],
        "band_high": [b.high for b in a.bands],
        "prefix": [b.prefix for b in a.bands],
        "keep_prob": a.keep_prob,
        "seed": a.seed,
        "offset": a.offset,
        "dropout_bits": None if a.dropout_mask is None else a.dropout_mask.flatten(),
    }


def native(a: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`_fusion_formula.formula`, blocked."""
    out, peak, total = a.outputs()
    if a.nothing:
        return out, peak, total
    torch.ops.softnpu.attention(
        a.q,
        a.k,
        a.v,
        _layouts.heads_first(out, a.layout, a.heads),
        a.as_rows(peak),
        a.as_rows(total),
        **_options(a),
    )
    return out, a.stored(peak), a.stored(total)


def native_gradients(a: Attention, saved: Saved) -> dict[str, torch.Tensor | None]:
    """`_fusion_formula.formula_gradients`, blocked."""
    grads = Gradients(a)
    if a.nothing:
        return grads.by_name()
    peak, total, out = saved.of_forward()
    exact = peak.dtype
    each = (len(a.segments), a.heads)
    dslopes = None if a.slopes is None else a.query.new_zeros(each, dtype=exact)
    dsink = None if a.sink is None else a.query.new_zeros(each, dtype=exact)
    torch.ops.softnpu.attention_backward(
        a.q,
        a.k,
        a.v,
        _layouts.heads_first(saved.dy, a.layout, a.heads),
        _layouts.heads_first(out, a.layout, a.heads),
        a.loaded(peak),
        a.loaded(total),
        grads.dq,
        grads.dk,
        grads.dv,
        grads.dpse if dslopes is None else None,
        dslopes,
        dsink,
        **_options(a),
    )
    if dslopes is not None and grads.dpse is not None:
        shape = grads.dpse.shape
        shared = len(shape) == 1 or shape[0] == 1
        grads.dpse.copy_((dslopes.sum(0, keepdim=True) if shared else dslopes).view(shape))
    if dsink is not None and grads.dsink is not None:
        grads.dsink.copy_(dsink.sum(0))
    return grads.by_name()
