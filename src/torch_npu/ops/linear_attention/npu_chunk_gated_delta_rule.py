"""npu_chunk_gated_delta_rule: linear attention by the gated delta rule, for whole prompts."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.linear_attention._delta import (
    CHUNK,
    check_heads,
    check_lengths,
    chunk,
    native_takes,
    per_value_head,
)


@npu_op(
    "npu_chunk_gated_delta_rule(Tensor query, Tensor key, Tensor value, *, Tensor? beta=None,"
    " Tensor? initial_state=None, Tensor? actual_seq_lengths=None, float? scale=None,"
    " Tensor? g=None) -> (Tensor, Tensor)",
    product=True,
)
def npu_chunk_gated_delta_rule(
    query, key, value, beta, initial_state, actual_seq_lengths, scale, g
):
    r"""Linear attention by the gated delta rule, over sequences that follow each other.

    $$ S_t = \alpha_t S_{t-1} + \beta_t (v_t - \alpha_t S_{t-1} k_t) k_t^T, \quad
       o_t = S_t q_t \cdot \mathrm{scale}, \quad \alpha_t = e^{g_t} $$

    Args:
        query: q, (T, Nk, Dk); bfloat16. Head h of the values reads head h // (Nv / Nk).
        key: k, as `query`.
        value: v, (T, Nv, Dv); bfloat16.
        beta: the strength of each update, (T, Nv); bfloat16. Required.
        initial_state: S_0 of each sequence, (B, Nv, Dv, Dk); bfloat16 or float32. Required.
        actual_seq_lengths: the length of each sequence, (B,) int32; their sum is at most T. Required.
        scale: the factor of the queries. Required.
        g: the logarithm of the decay, (T, Nv) float32; None for no decay.

    Returns:
        o, (T, Nv, Dv) bfloat16, and the last state of each sequence, with the shape and dtype of
        `initial_state`.

    Constraints:
        Nk and Nv at most 64, Nv divisible by Nk; Dk and Dv at most 128.

    Differs from upstream: sums are in fp32 throughout, where the card rounds the products inside a
    chunk of 64 tokens to bfloat16. Tokens past the last sequence, which the card leaves unwritten,
    give zeros.
    """
    lengths = actual_seq_lengths.tolist()
    heads = value.shape[1]
    q, k = (per_value_head(wide(x), heads).transpose(0, 1) for x in (query, key))
    q = q * (1.0 if scale is None else scale)
    v, strength = wide(value).transpose(0, 1), wide(beta).t()
    decay = torch.zeros_like(strength) if g is None else wide(g).t()
    out = torch.zeros_like(v)
    states = []
    start = 0
    for batch, length in enumerate(lengths):
        state = wide(initial_state[batch])
        for first in range(start, start + length, CHUNK):
            part = slice(first, min(first + CHUNK, start + length))
            out[:, part], state = chunk(
                q[:, part], k[:, part], v[:, part], strength[:, part], decay[:, part], state
            )
        states.append(state)
        start += length
    final = torch.stack(states).to(initial_state.dtype)
    return out.transpose(0, 1).contiguous().to(value.dtype), final


@npu_chunk_gated_delta_rule.native
def _(query, key, value, beta, initial_state, actual_seq_lengths, scale, g):
    if not native_takes(query, key, value, initial_state):
        return NotImplemented
    lengths = actual_seq_lengths.tolist()
    states = initial_state.clone(memory_format=torch.contiguous_format)
    own = list(range(len(lengths)))
    factor = 1.0 if scale is None else scale
    out = torch.ops.softnpu.gated_delta_rule(
        query, key, value, beta, g, None, factor, lengths, states, own, own, False
    )
    return out, states


@npu_chunk_gated_delta_rule.check
def _(query, key, value, beta, initial_state, actual_seq_lengths, scale, g):
    tokens, heads, width, key_width = check_heads(query, key, value, beta, 64, 128)
    check_lengths(actual_seq_lengths, tokens)
    must.present("initial_state", initial_state, "by this operator")
    must.dtype("initial_state", initial_state, torch.bfloat16, torch.float32)
    batch = actual_seq_lengths.shape[0]
    must.shape("initial_state", initial_state, (batch, heads, width, key_width))
    must.present("scale", scale, "by this operator")
    must.dtype("g", g, torch.float32)
    must.shape("g", g, (tokens, heads))


@npu_chunk_gated_delta_rule.meta
def _(value, initial_state):
    return torch.empty_like(value, memory_format=torch.contiguous_format), torch.empty_like(
        initial_state, memory_format=torch.contiguous_format
    )


def _sample(make, tokens, key_heads, heads, key_width, width, lengths):
    def unit(*shape):
        return torch.nn.functional.normalize(make(*shape), dim=-1).bfloat16()

    options = {
        "beta": make(tokens, heads, low=0.1, high=0.9).bfloat16(),
        "initial_state": make(len(lengths), heads, width, key_width).bfloat16(),
        "actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32).to(make(1).device),
        "scale": key_width**-0.5,
        "g": make(tokens, heads, low=-1, high=0),
    }
    qkv = (
        unit(tokens, key_heads, key_width),
        unit(tokens, key_heads, key_width),
        make(tokens, heads, width, dtype=torch.bfloat16),
    )
    return qkv, options


npu_chunk_gated_delta_rule.samples = [
    Sample(
        lambda make: _sample(make, 7, 2, 4, 16, 8, [4, 3])[0],
        lambda make: _sample(make, 7, 2, 4, 16, 8, [4, 3])[1],
    ),
    Sample(
        lambda make: _sample(make, 70, 1, 1, 8, 8, [70])[0],
        lambda make: {**_sample(make, 70, 1, 1, 8, 8, [70])[1], "g": None},
    ),
]
