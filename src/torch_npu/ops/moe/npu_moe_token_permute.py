"""npu_moe_token_permute and its gradients: tokens copied expert by expert."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import Sharding
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.moe._routing import FLOATS, inverse_permutation, take_rows

#: topK may not exceed this
MAX_EXPERTS_A_TOKEN = 512
_EVERY_EXPERT = 2**31


def _top_k(indices: torch.Tensor) -> int:
    return 1 if indices.dim() == 1 else indices.size(1)


def _kept(indices: torch.Tensor, num_out_tokens: int | None) -> int:
    """How many rows come out; negative numbers count from the end, 0 and None keep all."""
    wanted, total = num_out_tokens or 0, indices.numel()
    return min(wanted, total) if wanted > 0 else wanted + total


def sum_over_experts(
    rows: torch.Tensor, sorted_indices: torch.Tensor, top_k: int, probs: torch.Tensor | None = None
) -> torch.Tensor:
    """For each token the sum of its top_k rows (times probs) in wide; missing rows add nothing."""
    places = sorted_indices.reshape(-1, top_k)
    out = torch.zeros(places.size(0), rows.size(1), dtype=wide(rows[:0]).dtype, device=rows.device)
    for j in range(top_k):
        term = wide(take_rows(rows, places[:, j]))
        out = out + (term if probs is None else term * wide(probs[:, j : j + 1]))
    return out


def _native_sum(rows, sorted_indices, top_k, dtype):
    """`sum_over_experts` in C++, rounded to `dtype`; None where that has no kernel."""
    if rows.dtype != dtype or not fits(rows) or top_k == 0:
        return None
    places = sorted_indices.view(-1, top_k)
    return torch.ops.softnpu.finalize_routing(rows, places, None, None, None, None, None)


@npu_op(
    "npu_moe_token_permute(Tensor tokens, Tensor indices, int? num_out_tokens=None, "
    "bool padded_mode=False) -> (Tensor, Tensor)"
)
def npu_moe_token_permute(tokens, indices, num_out_tokens):
    r"""Sorts the (token, expert) pairs by expert, ties as they stand, and copies the tokens.

    $$ order = \mathrm{argsort}(indices), \qquad permuted_i = tokens_{order_i \div K}, \qquad
       sorted\_indices = \mathrm{argsort}(order) $$

    Args:
        tokens: (N, H); float16, bfloat16, float32 or int8.
        indices: the experts of each token, (N) or (N, K), int32 or int64; K at most 512, values in
            [0, 16777215).
        num_out_tokens: how many sorted rows to keep; None and 0 keep all, a negative number drops
            so many from the end.
        padded_mode: False (upstream supports nothing else).

    Returns:
        The rows (num_out_tokens, H), and where each pair went (N * K), int32; a dropped pair has a
        place behind the last row.
    """
    order = torch.argsort(indices.reshape(-1), stable=True)
    rows = order[: _kept(indices, num_out_tokens)] // max(_top_k(indices), 1)
    return tokens.index_select(0, rows), inverse_permutation(order).to(torch.int32)


@npu_moe_token_permute.check
def _(tokens, indices, num_out_tokens, padded_mode):
    must.dtype("tokens", tokens, *FLOATS, torch.int8)
    must.ndim("tokens", tokens, 2)
    must.dtype("indices", indices, torch.int32, torch.int64)
    must.ndim("indices", indices, 1, 2)
    must.shape("indices", indices, (tokens.size(0), None)[: indices.dim()])
    top_k = _top_k(indices)
    must.hold(top_k <= MAX_EXPERTS_A_TOKEN, "indices", "of at most 512 experts a token", top_k)
    kept = _kept(indices, num_out_tokens)
    must.hold(kept >= 0, "num_out_tokens", f"at least {-indices.numel()}", num_out_tokens)
    must.unset("padded_mode", padded_mode, False)
    inside("indices", indices, 16777215)


@npu_moe_token_permute.native
def _(tokens, indices, num_out_tokens):
    source, _, place = torch.ops.softnpu.route_pairs(
        indices, _top_k(indices), 0, _EVERY_EXPERT, _kept(indices, num_out_tokens)
    )
    return torch.ops.softnpu.take_rows(tokens, source, None), place


@npu_moe_token_permute.backward
def _(grad, _grad_indices, *, tokens, indices, padded_mode, result1):
    return {
        "tokens": torch.ops.npu.npu_moe_token_permute_grad_v2(
            grad,
            result1,
            tokens.size(0),
            tokens.dtype,
            _top_k(indices),
            padded_mode,
        )
    }


@npu_moe_token_permute.sharding
def _():
    yield Sharding((1, None), {"tokens": 1})


npu_moe_token_permute.samples = [
    Sample(lambda make: (make(6, 8), make(6, 2, dtype=torch.int64, low=0, high=4))),
    Sample(lambda make: (make(6, 8), make(6, dtype=torch.int32, low=0, high=4))),
    Sample(
        lambda make: (
            make(6, 8, dtype=torch.bfloat16), make(6, 2, dtype=torch.int64, low=0, high=4)
        ),
        {"num_out_tokens": 9},
        name="dropping",
    ),
]  # fmt: skip


def _check_grad(grad_permuted_tokens, sorted_indices, tokens, top_k, padded_mode):
    must.dtype("grad_permuted_tokens", grad_permuted_tokens, *FLOATS)
    must.ndim("grad_permuted_tokens", grad_permuted_tokens, 2)
    must.dtype("sorted_indices", sorted_indices, torch.int32)
    must.shape("sorted_indices", sorted_indices, (tokens * top_k,))
    must.unset("padded_mode", padded_mode, False)


@npu_op(
    "npu_moe_token_permute_grad_v2(Tensor grad_permuted_tokens, Tensor sorted_indices, "
    "int tokens_size_0, ScalarType tokens_dtype, int num_topK, bool padded_mode=False) -> Tensor"
)
def npu_moe_token_permute_grad_v2(
    grad_permuted_tokens, sorted_indices, tokens_size_0, tokens_dtype, num_topK
):
    r"""Gradient of `npu_moe_token_permute`: each token sums up the gradients of its rows.

    $$ dtokens_i = \sum_{j<K} dpermuted_{sorted\_indices_{iK+j}} $$

    Args:
        grad_permuted_tokens: gradient of the rows, (rows, H).
        sorted_indices: second result of the forward, (N * K), int32; places behind
            the rows add nothing.
        tokens_size_0: N.
        tokens_dtype: dtype of the result.
        num_topK: K.
        padded_mode: False.

    Returns:
        (N, H) with `tokens_dtype`, summed in float32.
    """
    grad = sum_over_experts(grad_permuted_tokens, sorted_indices, num_topK)
    return grad[:tokens_size_0].to(tokens_dtype)


@npu_moe_token_permute_grad_v2.check
def _(grad_permuted_tokens, sorted_indices, tokens_size_0, tokens_dtype, num_topK, padded_mode):
    _check_grad(grad_permuted_tokens, sorted_indices, tokens_size_0, num_topK, padded_mode)
    must.choice("tokens_dtype", tokens_dtype, FLOATS)


@npu_moe_token_permute_grad_v2.native
def _(grad_permuted_tokens, sorted_indices, tokens_size_0, tokens_dtype, num_topK):
    grad = _native_sum(grad_permuted_tokens, sorted_indices, num_topK, tokens_dtype)
    if grad is None:
        return NotImplemented
    return grad[:tokens_size_0]


@npu_moe_token_permute_grad_v2.sharding
def _():
    yield Sharding((1,), {"grad_permuted_tokens": 1})


npu_moe_token_permute_grad_v2.samples = [
    Sample(
        lambda make: (
            make(8, 6), torch.arange(7, -1, -1, dtype=torch.int32, device=make(1).device),
            4, torch.float32, 2,
        )
    ),
]  # fmt: skip


@npu_op(
    "npu_moe_token_permute_grad(Tensor tokens, Tensor grad_permuted_tokens, Tensor indices, "
    "Tensor sorted_indices, bool padded_mode=False) -> Tensor"
)
def npu_moe_token_permute_grad(tokens, grad_permuted_tokens, indices, sorted_indices):
    """Gradient of `npu_moe_token_permute` from its inputs; see `npu_moe_token_permute_grad_v2`."""
    grad = sum_over_experts(grad_permuted_tokens, sorted_indices, _top_k(indices))
    return grad.to(tokens.dtype)


@npu_moe_token_permute_grad.check
def _(tokens, grad_permuted_tokens, indices, sorted_indices, padded_mode):
    must.ndim("tokens", tokens, 2)
    must.ndim("indices", indices, 1, 2)
    _check_grad(grad_permuted_tokens, sorted_indices, tokens.size(0), _top_k(indices), padded_mode)


@npu_moe_token_permute_grad.native
def _(tokens, grad_permuted_tokens, indices, sorted_indices):
    grad = _native_sum(grad_permuted_tokens, sorted_indices, _top_k(indices), tokens.dtype)
    if grad is None:
        return NotImplemented
    return grad


@npu_moe_token_permute_grad.sharding
def _():
    yield Sharding((1,), {"tokens": 1, "grad_permuted_tokens": 1})


npu_moe_token_permute_grad.samples = [
    Sample(
        lambda make: (
            make(4, 6), make(8, 6), make(4, 2, dtype=torch.int64, low=0, high=3),
            torch.arange(7, -1, -1, dtype=torch.int32, device=make(1).device),
        )
    ),
]  # fmt: skip
