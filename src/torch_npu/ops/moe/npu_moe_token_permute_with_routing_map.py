"""npu_moe_token_permute_with_routing_map and its gradient: tokens expert by expert, by a map."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.moe._routing import FLOATS
from torch_npu.ops.moe._routing_map import MAPS, check_map, check_probs, pairs_of, slots_of
from torch_npu.ops.moe.npu_moe_token_permute import sum_over_experts


def _rows(tokens, routing_map, num_out_tokens, drop_and_pad):
    """How many rows come out: whole multiples of the experts, or of the tokens."""
    wanted = tokens.size(0) if num_out_tokens is None else num_out_tokens
    unit = routing_map.size(1 if drop_and_pad else 0)
    return wanted // unit * unit if unit else 0


@npu_op(
    "npu_moe_token_permute_with_routing_map(Tensor tokens, Tensor routing_map, *, "
    "Tensor? probs=None, int? num_out_tokens=None, bool drop_and_pad=False) "
    "-> (Tensor, Tensor, Tensor)",
    output_differentiability=(True, True, False),
)
def npu_moe_token_permute_with_routing_map(
    tokens, routing_map, probs, num_out_tokens, drop_and_pad
):
    r"""Copies each token once for each expert that the map gives it, expert by expert.

    $$ pairs = \{(e, t) : map_{t,e}\} \text{ in order}, \qquad permuted_i = tokens_{t_i}, \qquad
       p_i = probs_{t_i, e_i} $$

    Args:
        tokens: (N, H); float16, bfloat16 or float32.
        routing_map: which expert takes which token, (N, E), bool or int8.
        probs: (N, E), moved along with the tokens.
        num_out_tokens: how many rows, N unless given. Without padding it is N * K, and each
            token has K experts. With padding each expert has num_out_tokens / E rows, its own
            tokens first.
        drop_and_pad: rows of a fixed number for each expert.

    Returns:
        The rows; the moved `probs`, empty without `probs`; and int32 indices: the rows of the
        tokens, token by token, or with padding the token of each row.
    """
    rows = _rows(tokens, routing_map, num_out_tokens, drop_and_pad)
    if drop_and_pad:
        free = (routing_map.t() == 0).to(torch.uint8)
        capacity = rows // max(routing_map.size(1), 1)
        index = torch.argsort(free, dim=1, stable=True)[:, :capacity].reshape(-1)
        expert, token = slots_of(index, routing_map.size(1))
    else:
        expert, token = pairs_of(routing_map, rows)
        index = torch.argsort(token, stable=True)
    if probs is None:
        moved = torch.zeros(0, dtype=tokens.dtype, device=tokens.device)
    else:
        moved = probs[token, expert]
    return tokens.index_select(0, token), moved, index.to(torch.int32)


@npu_moe_token_permute_with_routing_map.check
def _(tokens, routing_map, probs, num_out_tokens, drop_and_pad):
    must.dtype("tokens", tokens, *FLOATS)
    must.ndim("tokens", tokens, 2)
    must.ndim("routing_map", routing_map, 2)
    if num_out_tokens is not None:
        most = routing_map.numel()
        fits = 0 <= num_out_tokens <= most
        must.hold(fits, "num_out_tokens", f"within [0, {most}]", num_out_tokens)
    count = tokens.size(0)
    rows = _rows(tokens, routing_map, num_out_tokens, drop_and_pad)
    top_k = None if drop_and_pad else rows // max(count, 1)
    if top_k is not None:
        must.hold(top_k <= 512, "num_out_tokens", "of at most 512 experts a token", top_k)
    check_map(routing_map, count, top_k)
    check_probs(probs, routing_map, tokens)


@npu_moe_token_permute_with_routing_map.backward
def _(grad_rows, grad_probs, *, tokens, routing_map, drop_and_pad, result2, needs):
    d_tokens, d_probs = torch.ops.npu.npu_moe_token_permute_with_routing_map_grad(
        grad_rows,
        grad_probs if needs.get("probs") else None,
        result2,
        routing_map,
        routing_map.size(1),
        tokens.size(0),
        drop_and_pad,
    )
    return {"tokens": d_tokens, "probs": d_probs}


npu_moe_token_permute_with_routing_map.samples = [
    Sample(
        lambda make: (make(3, 4), make(3, 2, low=1, high=2, dtype=torch.int8)),
        lambda make: {"probs": make(3, 2), "num_out_tokens": 6},
    ),
    Sample(
        lambda make: (make(6, 4), make(6, 3, dtype=torch.bool)),
        {"num_out_tokens": 6, "drop_and_pad": True},
        name="padded",
    ),
]


@npu_op(
    "npu_moe_token_permute_with_routing_map_grad(Tensor permuted_token_out_grad, "
    "Tensor? probs_grad, Tensor sorted_indices, Tensor routing_map, SymInt experts_num, "
    "SymInt tokens_num, bool drop_and_pad) -> (Tensor, Tensor)"
)
def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad,
    probs_grad,
    sorted_indices,
    routing_map,
    experts_num,
    tokens_num,
    drop_and_pad,
):
    """Gradients of `npu_moe_token_permute_with_routing_map`: of the tokens, and of `probs`.

    `sorted_indices` is the third result of the forward; each token sums up the gradients of its
    rows. The second result is empty without `probs_grad`.
    """
    grad, rows = permuted_token_out_grad, permuted_token_out_grad.size(0)
    if drop_and_pad:
        expert, token = slots_of(sorted_indices, experts_num)
        shape = (tokens_num, grad.size(1))
        zeros = torch.zeros(shape, dtype=wide(grad[:0]).dtype, device=grad.device)
        d_tokens = zeros.index_add(0, token, wide(grad))
    else:
        expert, token = pairs_of(routing_map, rows)
        top_k = rows // max(tokens_num, 1)
        d_tokens = sum_over_experts(grad, sorted_indices, max(top_k, 1))
    d_tokens = d_tokens[:tokens_num].to(grad.dtype)
    if probs_grad is None:
        return d_tokens, torch.zeros(0, dtype=grad.dtype, device=grad.device)
    d_probs = torch.zeros(tokens_num, experts_num, dtype=probs_grad.dtype, device=grad.device)
    return d_tokens, d_probs.index_put((token, expert), probs_grad, accumulate=True)


@npu_moe_token_permute_with_routing_map_grad.check
def _(
    permuted_token_out_grad,
    probs_grad,
    sorted_indices,
    routing_map,
    experts_num,
    tokens_num,
    drop_and_pad,
):
    must.dtype("permuted_token_out_grad", permuted_token_out_grad, *FLOATS)
    must.ndim("permuted_token_out_grad", permuted_token_out_grad, 2)
    rows = permuted_token_out_grad.size(0)
    must.dtype("sorted_indices", sorted_indices, torch.int32)
    must.shape("sorted_indices", sorted_indices, (rows,))
    must.dtype("routing_map", routing_map, *MAPS)
    must.shape("routing_map", routing_map, (tokens_num, experts_num))
    must.shape("probs_grad", probs_grad, (rows,))
    inside("sorted_indices", sorted_indices, tokens_num if drop_and_pad else rows)


npu_moe_token_permute_with_routing_map_grad.samples = [
    Sample(
        lambda make: (
            make(6, 4), make(6),
            torch.tensor([0, 3, 1, 4, 2, 5], dtype=torch.int32, device=make(1).device),
            make(3, 2, low=1, high=2, dtype=torch.int8), 2, 3, False,
        )
    ),
]  # fmt: skip
