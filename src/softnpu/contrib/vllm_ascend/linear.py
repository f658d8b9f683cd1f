"""Linear attention of `_C_ascend`: the gated delta rule in chunks and steps."""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.linear_attention._delta import per_value_head
from torch_npu.ops.linear_attention.npu_recurrent_gated_delta_rule import (
    npu_recurrent_gated_delta_rule as recurrent,
)

__all__ = [
    "chunk_fwd_o",
    "chunk_gated_delta_rule_fwd_h",
    "npu_recurrent_gated_delta_rule_310",
]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@ascend_op(
    "npu_recurrent_gated_delta_rule_310(Tensor query, Tensor key, Tensor value, Tensor beta, "
    "Tensor state, Tensor actual_seq_lengths, Tensor ssm_state_indices, Tensor? g, Tensor? gk, "
    "Tensor? num_accepted_tokens, float scale_value=1.0) -> Tensor output"
)
def npu_recurrent_gated_delta_rule_310(query, key, value, state, scale_value, **rest):
    """`npu_recurrent_gated_delta_rule` in float16; `state` is written, though the schema does not say so."""
    return recurrent.as_function("body")(query, key, value, state, scale=scale_value, **rest)


@npu_recurrent_gated_delta_rule_310.meta
def _(value):
    return torch.empty_like(value)


@npu_recurrent_gated_delta_rule_310.check
def _(query, key, value, beta, state, actual_seq_lengths, ssm_state_indices, **rest):
    must.dtype("query", query, torch.float16, torch.bfloat16)
    must.ndim("query", query, 3)
    must.ndim("value", value, 3)
    tokens, heads, width = value.shape
    keys = query.shape[1]
    must.hold(keys > 0 and heads % keys == 0, "value", f"of a multiple of {keys} heads", heads)
    must.shape("key", key, tuple(query.shape))
    must.shape("query", query, (tokens, None, None))
    must.shape("beta", beta, (tokens, heads))
    must.shape("state", state, (None, heads, width, query.shape[2]))
    must.shape("ssm_state_indices", ssm_state_indices, (tokens,))
    must.ndim("actual_seq_lengths", actual_seq_lengths, 1)
    for name, shape in (("g", (tokens, heads)), ("gk", (tokens, heads, query.shape[2]))):
        must.dtype(name, rest[name], torch.float32)
        must.shape(name, rest[name], shape)
    must.shape("num_accepted_tokens", rest["num_accepted_tokens"], tuple(actual_seq_lengths.shape))


def _chunks(batch, tokens, bounds, size):
    """(batch, sequence, slice, chunk) of each chunk; sequences without tokens have none."""
    spans = [(b, b, 0, tokens) for b in range(batch)]
    if bounds is not None:
        spans = [(0, n, a, z) for n, (a, z) in enumerate(zip(bounds, bounds[1:], strict=False))]
    chunk = 0
    for b, sequence, start, end in spans:
        chunk = 0 if bounds is None else chunk
        for first in range(start, end, size):
            yield b, sequence, slice(first, min(first + size, end)), chunk
            chunk += 1


def _count(tokens, chunk_indices, size):
    return -(-tokens // size) if chunk_indices is None else len(chunk_indices) // 2


_DELTA = (
    "chunk_gated_delta_rule_fwd_h(Tensor k, Tensor w, Tensor u, Tensor? g=None, *, "
    "Tensor? gk=None, Tensor? initial_state=None, bool? output_final_state=False, "
    "int? chunk_size=None, bool? save_new_value=True, int[]? cu_seqlens=None, "
    "int[]? chunk_indices=None, bool? use_exp2=False, bool? transpose_state_layout=False) -> "
    "(Tensor h_out, Tensor v_new_out, Tensor final_state_out)"
)


@ascend_op(_DELTA, product=True)
def chunk_gated_delta_rule_fwd_h(
    k, w, u, g, initial_state, output_final_state, chunk_size, cu_seqlens, chunk_indices
):
    r"""The state before each chunk and the values that the delta rule adds, in the form of flash-linear-attention.

    For the tokens i of a chunk, with the sums of the decay's logarithm $g_i$ within it:
    $$ v'_i = u_i - w_i S, \quad S \leftarrow e^{g_{last}} S + \sum_i e^{g_{last} - g_i} k_i^T v'_i $$
    k (B, Nk, T, K), w (B, Nv, T, K), u (B, Nv, T, V), g (B, Nv, T), states (B or sequences, Nv, K, V).
    """
    size = chunk_size or 64
    h, new, final = _delta_shapes(
        k, u, initial_state, output_final_state, size, cu_seqlens, chunk_indices
    )
    key, decay = _value_heads(k, u), None if g is None else wide(g)
    states: dict[int, torch.Tensor] = {}
    for b, sequence, part, chunk in _chunks(k.shape[0], k.shape[2], cu_seqlens, size):
        state = states.get(sequence)
        if state is None:
            state = torch.zeros(h.shape[1], *h.shape[3:])
            state = state if initial_state is None else wide(initial_state[sequence])
        h[b, :, chunk] = state.to(h.dtype)
        value = wide(u[b, :, part]) - wide(w[b, :, part]) @ state
        new[b, :, part] = value.to(new.dtype)
        if decay is not None:
            sums = decay[b, :, part]
            value = value * (sums[:, -1:] - sums).exp().unsqueeze(-1)
            state = state * sums[:, -1].exp().view(-1, 1, 1)
        states[sequence] = state + key[b, :, part].transpose(1, 2) @ value
    if output_final_state:
        for sequence in range(final.shape[0]):
            found = states.get(sequence)
            if found is None and initial_state is not None:
                found = initial_state[sequence]
            final[sequence] = 0 if found is None else found.to(final.dtype)
    return h, new, final


def _value_heads(k, v):
    """Keys of each head of the values, in fp32."""
    return (
        per_value_head(wide(k).transpose(1, 2).flatten(0, 1), v.shape[1])
        .unflatten(0, (k.shape[0], k.shape[2]))
        .transpose(1, 2)
    )


def _delta_shapes(k, u, initial_state, output_final_state, size, cu_seqlens, chunk_indices):
    batch, _, tokens, depth = k.shape
    heads, width = u.shape[1], u.shape[3]
    h = k.new_zeros(batch, heads, _count(tokens, chunk_indices, size), depth, width)
    new = torch.zeros_like(u, memory_format=torch.contiguous_format)
    if not output_final_state:
        return h, new, k.new_zeros(0)
    like = h if initial_state is None else initial_state
    sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
    return h, new, like.new_zeros(sequences, heads, depth, width)


@chunk_gated_delta_rule_fwd_h.meta
def _(k, u, initial_state, output_final_state, chunk_size, cu_seqlens, chunk_indices):
    return _delta_shapes(
        k, u, initial_state, output_final_state, chunk_size or 64, cu_seqlens, chunk_indices
    )


def _check_chunks(k, v, name, g, cu_seqlens, chunk_indices, chunk_size):
    for label, tensor in (("k", k), (name, v)):
        must.dtype(label, tensor, *_FLOATS)
        must.ndim(label, tensor, 4)
    batch, keys, tokens, _ = k.shape
    heads = v.shape[1]
    must.shape(name, v, (batch, None, tokens, None))
    must.hold(keys > 0 and heads % keys == 0, name, f"of a multiple of {keys} heads", heads)
    must.dtype("g", g, torch.float32)
    must.shape("g", g, (batch, heads, tokens))
    size = 64 if chunk_size is None else chunk_size
    must.hold(size > 0, "chunk_size", "positive", size)
    if cu_seqlens is not None:
        must.hold(batch == 1, "cu_seqlens", "None with more than one batch", list(cu_seqlens))
        pairs = list(zip(cu_seqlens, cu_seqlens[1:], strict=False))
        fine = all(a <= z for a, z in pairs) and 0 <= cu_seqlens[0] <= cu_seqlens[-1] <= tokens
        must.hold(fine, "cu_seqlens", f"ascending up to {tokens}", list(cu_seqlens))
        wanted = sum(-(-(z - a) // size) for a, z in pairs)
        received = _count(tokens, chunk_indices, size)
        expected = f"of a pair for each of the {wanted} chunks"
        must.hold(received == wanted, "chunk_indices", expected, received)


@chunk_gated_delta_rule_fwd_h.check
def _(k, w, u, g, gk, initial_state, chunk_size, cu_seqlens, chunk_indices, **rest):
    _check_chunks(k, u, "u", g, cu_seqlens, chunk_indices, chunk_size)
    batch, _, tokens, depth = k.shape
    must.shape("w", w, (batch, u.shape[1], tokens, depth))
    must.unset("gk", gk)
    sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
    must.shape("initial_state", initial_state, (sequences, u.shape[1], depth, u.shape[3]))
    must.unset("use_exp2", rest["use_exp2"] or False, False)
    must.unset("transpose_state_layout", rest["transpose_state_layout"] or False, False)


@ascend_op(
    "chunk_fwd_o(Tensor q, Tensor k, Tensor v, Tensor h, float scale, *, Tensor? g=None, "
    "Tensor? g_gamma=None, int[]? cu_seqlens=None, int[]? chunk_indices=None, "
    "int? chunk_size=None, bool? transpose_state_layout=False) -> Tensor",
    product=True,
)
def chunk_fwd_o(q, k, v, h, scale, g, cu_seqlens, chunk_size):
    r"""The outputs from the states and values of `chunk_gated_delta_rule_fwd_h`.

    $$ o_i = scale \cdot \Big( e^{g_i} q_i S + \sum_{j \le i} e^{g_i - g_j} (q_i k_j^T) v_j \Big) $$
    """
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    query, key = _value_heads(q, v), _value_heads(k, v)
    for b, _, part, chunk in _chunks(v.shape[0], v.shape[2], cu_seqlens, chunk_size or 64):
        rows = query[b, :, part]
        score, carried = rows @ key[b, :, part].transpose(1, 2), rows @ wide(h[b, :, chunk])
        if g is not None:
            sums = wide(g[b, :, part])
            score = score * (sums.unsqueeze(2) - sums.unsqueeze(1)).exp().tril()
            carried = carried * sums.exp().unsqueeze(-1)
        found = (carried + score.tril() @ wide(v[b, :, part])) * scale
        out[b, :, part] = found.to(out.dtype)
    return out


@chunk_fwd_o.meta
def _(v):
    return torch.empty_like(v, memory_format=torch.contiguous_format)


@chunk_fwd_o.check
def _(q, k, v, h, g, g_gamma, cu_seqlens, chunk_indices, chunk_size, transpose_state_layout):
    must.anything(transpose_state_layout)  # the card's operator does not get it
    must.unset("g_gamma", g_gamma)
    _check_chunks(k, v, "v", g, cu_seqlens, chunk_indices, chunk_size)
    must.shape("q", q, tuple(k.shape))
    count = _count(k.shape[2], chunk_indices, chunk_size or 64)
    must.shape("h", h, (k.shape[0], v.shape[1], count, k.shape[3], v.shape[3]))
