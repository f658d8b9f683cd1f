"""The gated delta rule's constraints and its chunked form."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must

#: tokens that are solved together; the result does not depend on it
CHUNK = 64


def check_heads(query, key, value, beta, most_heads, most_width):
    """Shapes and types that both forms of the rule share; `most_*` are their limits."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        must.dtype(name, tensor, torch.bfloat16)
        must.ndim(name, tensor, 3)
        must.hold(tensor.numel() > 0, name, "not empty", tuple(tensor.shape))
    tokens, key_heads, key_width = query.shape
    heads, width = value.shape[1:]
    must.shape("key", key, (tokens, key_heads, key_width))
    must.shape("value", value, (tokens, None, None))
    for name, tensor, size in (("query", query, key_heads), ("value", value, heads)):
        shape = tuple(tensor.shape)
        must.hold(size <= most_heads, name, f"of at most {most_heads} heads", shape)
        must.hold(tensor.shape[2] <= most_width, name, f"of head size at most {most_width}", shape)
    must.hold(
        heads % key_heads == 0,
        "value",
        f"of a number of heads divisible by that of 'query' ({key_heads})",
        tuple(value.shape),
    )
    must.present("beta", beta, "by this operator")
    must.dtype("beta", beta, torch.bfloat16)
    must.shape("beta", beta, (tokens, heads))
    return tokens, heads, width, key_width


def check_lengths(actual_seq_lengths, tokens):
    """The lengths of the sequences, which follow each other in the first dimension of `query`."""
    must.present("actual_seq_lengths", actual_seq_lengths, "by this operator")
    must.dtype("actual_seq_lengths", actual_seq_lengths, torch.int32)
    must.ndim("actual_seq_lengths", actual_seq_lengths, 1)
    shape = tuple(actual_seq_lengths.shape)
    must.hold(shape[0] > 0, "actual_seq_lengths", "not empty", shape)
    if must.has_data(actual_seq_lengths):
        lengths = actual_seq_lengths.tolist()
        must.hold(min(lengths) >= 0, "actual_seq_lengths", "not negative", lengths)
        must.hold(
            sum(lengths) <= tokens,
            "actual_seq_lengths",
            f"of a sum of at most {tokens}, the tokens of 'query'",
            lengths,
        )


def per_value_head(tensor, heads):
    """(T, Nk, D) for each head of the values: head h reads head h // (Nv / Nk)."""
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


def native_takes(query, key, value, state) -> bool:
    """Whether csrc/kernels/gated_delta.cpp has the types; the states are written where they are."""
    floats = (torch.bfloat16, torch.float32)
    halves = query.dtype == key.dtype == value.dtype == torch.bfloat16
    return halves and state.dtype in floats and state.is_contiguous()


def chunk(q, k, v, beta, g, state):
    """A chunk of one sequence, with the head first: q, k (N, C, Dk), v (N, C, Dv), beta, g (N, C), state (N, Dv, Dk).

    With c the cumulative sum of g, step t adds u_t k_t^T to the state, where
    u_t = beta_t (v_t - exp(c_t) S k_t - sum_{j<t} exp(c_t - c_j) (k_j k_t) u_j): a triangular system.
    """
    total = g.cumsum(-1)
    below = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
    decay = (total[:, :, None] - total[:, None, :]).masked_fill(~below, -torch.inf).exp()
    system = (k @ k.transpose(1, 2)) * decay * beta[:, :, None]
    grown = total.exp()[:, :, None]
    target = beta[:, :, None] * (v - grown * (k @ state.transpose(1, 2)))
    u = torch.linalg.solve_triangular(system.tril(-1), target, upper=False, unitriangular=True)
    out = grown * (q @ state.transpose(1, 2)) + ((q @ k.transpose(1, 2)) * decay) @ u
    rest = (total[:, -1:] - total).exp()[:, :, None]
    return out, state * total[:, -1].exp()[:, None, None] + u.transpose(1, 2) @ (rest * k)
