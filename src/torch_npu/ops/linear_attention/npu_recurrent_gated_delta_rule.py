"""npu_recurrent_gated_delta_rule and its functional form: the gated delta rule, token by token."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.linear_attention._delta import (
    check_heads,
    check_lengths,
    native_takes,
    per_value_head,
)

#: tokens of a sequence in one call: one, and those that speculative decoding proposes
MAX_TOKENS = 8


@npu_op(
    "npu_recurrent_gated_delta_rule(Tensor query, Tensor key, Tensor value, Tensor(a!) state, *,"
    " Tensor? beta=None, float? scale=None, Tensor? actual_seq_lengths=None,"
    " Tensor? ssm_state_indices=None, Tensor? num_accepted_tokens=None, Tensor? g=None,"
    " Tensor? gk=None) -> Tensor",
    functional="npu_recurrent_gated_delta_rule_functional(Tensor query, Tensor key, Tensor value,"
    " Tensor state, *, Tensor? beta=None, float? scale=None, Tensor? actual_seq_lengths=None,"
    " Tensor? ssm_state_indices=None, Tensor? num_accepted_tokens=None, Tensor? g=None,"
    " Tensor? gk=None) -> (Tensor, Tensor)",
    core="AI_VECTOR_CORE",
)
def npu_recurrent_gated_delta_rule(
    query,
    key,
    value,
    state,
    beta,
    scale,
    actual_seq_lengths,
    ssm_state_indices,
    num_accepted_tokens,
    g,
    gk,
):
    r"""Linear attention by the gated delta rule for decoding; the state after every token is kept.

    $$ S' = \alpha_t S_{t-1} \mathrm{diag}(\alpha^k_t), \quad
       S_t = S' + \beta_t (v_t - S' k_t) k_t^T, \quad o_t = S_t q_t \cdot \mathrm{scale} $$

    with $\alpha_t = e^{g_t}$ and $\alpha^k_t = e^{gk_t}$. Token t writes its state to
    `state[ssm_state_indices[t]]`. A sequence starts from the state of its first token's index, or of
    the index of the last token that was accepted.

    Args:
        query: q, (T, Nk, Dk); bfloat16. Head h of the values reads head h // (Nv / Nk).
        key: k, as `query`.
        value: v, (T, Nv, Dv); bfloat16.
        state: the blocks of states, (blocks, Nv, Dv, Dk), written in place; bfloat16 or float32.
            There are at least T blocks.
        beta: the strength of each update, (T, Nv); bfloat16. Required.
        scale: the factor of the queries. Required.
        actual_seq_lengths: the length of each sequence, (B,) int32, at most 8. Required.
        ssm_state_indices: the block of each token, (T,) int32. Required.
        num_accepted_tokens: how many tokens of the last step each sequence accepted, (B,) int32,
            from 1 to its length; None for 1.
        g: the logarithm of the decay, (T, Nv) float32; None for no decay.
        gk: the logarithm of the decay of each key channel, (T, Nv, Dk) float32; None for none.

    Returns:
        o, (T, Nv, Dv) bfloat16.

    Constraints:
        Nk and Nv at most 256, Nv divisible by Nk; Dk and Dv at most 512.

    Differs from upstream: tokens past the last sequence, which the card leaves unwritten, give
    zeros. A sequence of no tokens is accepted.
    """
    lengths = actual_seq_lengths.tolist()
    blocks = ssm_state_indices.tolist()
    accepted = [1] * len(lengths) if num_accepted_tokens is None else num_accepted_tokens.tolist()
    q, k, v, strength = wide(query), wide(key), wide(value), wide(beta)
    q = per_value_head(q, v.shape[1]) * (q.shape[-1] ** -0.5 if scale is None else scale)
    k = per_value_head(k, v.shape[1])
    decay = None if g is None else wide(g).exp()[:, :, None, None]
    key_decay = None if gk is None else wide(gk).exp()[:, :, None, :]
    out = torch.zeros_like(v)
    start = 0
    for length, taken in zip(lengths, accepted, strict=True):
        if length:
            s = wide(state[blocks[start + taken - 1]])
        for t in range(start, start + length):
            s = s if decay is None else s * decay[t]
            s = s if key_decay is None else s * key_decay[t]
            seen = (s * k[t, :, None]).sum(-1)
            update = (v[t] - seen) * strength[t, :, None]
            s = s + update[:, :, None] * k[t, :, None]
            out[t] = (s * q[t, :, None]).sum(-1)
            state[blocks[t]] = s.to(state.dtype)
        start += length
    return out.to(value.dtype)


@npu_recurrent_gated_delta_rule.native
def _(
    query,
    key,
    value,
    state,
    beta,
    scale,
    actual_seq_lengths,
    ssm_state_indices,
    num_accepted_tokens,
    g,
    gk,
):
    if not native_takes(query, key, value, state):
        return NotImplemented
    lengths, blocks = actual_seq_lengths.tolist(), ssm_state_indices.tolist()
    accepted = [1] * len(lengths) if num_accepted_tokens is None else num_accepted_tokens.tolist()
    firsts, start = [], 0
    for length, taken in zip(lengths, accepted, strict=True):
        firsts.append(blocks[start + taken - 1] if length else 0)
        start += length
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return torch.ops.softnpu.gated_delta_rule(
        query, key, value, beta, g, gk, factor, lengths, state, firsts, blocks, True
    )


@npu_recurrent_gated_delta_rule.check
def _(
    query,
    key,
    value,
    state,
    beta,
    scale,
    actual_seq_lengths,
    ssm_state_indices,
    num_accepted_tokens,
    g,
    gk,
):
    tokens, heads, width, key_width = check_heads(query, key, value, beta, 256, 512)
    check_lengths(actual_seq_lengths, tokens)
    must.present("scale", scale, "by this operator")
    must.dtype("state", state, torch.bfloat16, torch.float32)
    must.shape("state", state, (None, heads, width, key_width))
    shape = tuple(state.shape)
    must.hold(shape[0] >= tokens, "state", f"of at least {tokens} blocks, one a token", shape)
    must.present("ssm_state_indices", ssm_state_indices, "by this operator")
    must.dtype("ssm_state_indices", ssm_state_indices, torch.int32)
    must.shape("ssm_state_indices", ssm_state_indices, (tokens,))
    must.dtype("num_accepted_tokens", num_accepted_tokens, torch.int32)
    must.shape("num_accepted_tokens", num_accepted_tokens, tuple(actual_seq_lengths.shape))
    must.dtype("g", g, torch.float32)
    must.shape("g", g, (tokens, heads))
    must.dtype("gk", gk, torch.float32)
    must.shape("gk", gk, (tokens, heads, key_width))
    _check_values(actual_seq_lengths, ssm_state_indices, num_accepted_tokens, shape[0])


def _check_values(actual_seq_lengths, ssm_state_indices, num_accepted_tokens, blocks):
    if not must.has_data(actual_seq_lengths):
        return
    lengths = actual_seq_lengths.tolist()
    must.hold(max(lengths) <= MAX_TOKENS, "actual_seq_lengths", f"at most {MAX_TOKENS}", lengths)
    used = ssm_state_indices.tolist()[: sum(lengths)]
    must.hold(
        all(0 <= i < blocks for i in used), "ssm_state_indices", f"in [0, {blocks - 1}]", used
    )
    if num_accepted_tokens is not None:
        accepted = num_accepted_tokens.tolist()
        must.hold(
            all(n == 0 or 1 <= a <= n for a, n in zip(accepted, lengths, strict=True)),
            "num_accepted_tokens",
            f"from 1 to the sequence's length ({lengths})",
            accepted,
        )


@npu_recurrent_gated_delta_rule.meta
def _(value):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _sample(make, lengths, key_heads, heads, key_width, width):
    def integers(values):
        return torch.tensor(values, dtype=torch.int32).to(make(1).device)

    def unit(*shape):
        return torch.nn.functional.normalize(make(*shape), dim=-1).bfloat16()

    tokens = sum(lengths)
    given = (
        unit(tokens, key_heads, key_width),
        unit(tokens, key_heads, key_width),
        make(tokens, heads, width, dtype=torch.bfloat16),
        make(tokens + 2, heads, width, key_width).bfloat16(),
    )
    options = {
        "beta": make(tokens, heads, low=0.1, high=0.9).bfloat16(),
        "scale": key_width**-0.5,
        "actual_seq_lengths": integers(lengths),
        "ssm_state_indices": integers(range(tokens + 1, 1, -1)),
        "num_accepted_tokens": integers(lengths),
        "g": make(tokens, heads, low=-1, high=0),
    }
    return given, options


npu_recurrent_gated_delta_rule.samples = [
    Sample(
        lambda make: _sample(make, [2, 3], 2, 4, 16, 8)[0],
        lambda make: _sample(make, [2, 3], 2, 4, 16, 8)[1],
    ),
    Sample(
        lambda make: _sample(make, [1, 1], 1, 1, 8, 8)[0],
        lambda make: {
            **_sample(make, [1, 1], 1, 1, 8, 8)[1],
            "num_accepted_tokens": None,
            "g": None,
            "gk": make(2, 1, 8, low=-1, high=0),
        },
    ),
]
