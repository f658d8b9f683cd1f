"""npu_moe_token_unpermute_with_routing_map and its gradient: rows merged back, by a map."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits, floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.moe._routing import FLOATS, take_rows
from torch_npu.ops.moe._routing_map import check_map, check_probs, experts_of_tokens, slots_of


def _top_k(sorted_indices, tokens):
    return sorted_indices.numel() // max(tokens, 1)


def _rows_of(sorted_indices, tokens, drop_and_pad, probs, routing_map):
    """For each index: the token, the row of `permuted_tokens` (-1: none), the weight (None: 1)."""
    count = sorted_indices.numel()
    steps = torch.arange(count, device=sorted_indices.device)
    if drop_and_pad:
        experts = 1 if probs is None else probs.size(1)
        expert, token = slots_of(sorted_indices, experts)
        return token, steps, None if probs is None else probs[token, expert]
    top_k = _top_k(sorted_indices, tokens)
    token = steps // max(top_k, 1)
    if probs is None:
        return token, sorted_indices.long(), None
    return token, sorted_indices.long(), probs[token, experts_of_tokens(routing_map, top_k)]


def _sum(rows, token, row, weight, tokens):
    """For each token the sum of its rows, times their weights."""
    terms = wide(take_rows(rows, row))
    if weight is not None:
        terms = terms * wide(weight).unsqueeze(1)
    out = torch.zeros(tokens, rows.size(1), dtype=terms.dtype, device=rows.device)
    return out.index_add(0, token, terms).to(rows.dtype)


def _native_sum(rows, token, row, weight, tokens):
    taken = torch.ops.softnpu.take_rows(rows, row, None)
    place = token.to(torch.int32).unsqueeze(1)
    factor = None if weight is None else weight.unsqueeze(1)
    return torch.ops.softnpu.finalize_routing_backward(taken, place, tokens, factor, None)[0]


def _merged(add_up, rows, sorted_indices, tokens, probs, routing_map, drop_and_pad):
    """The forward's four results, with `add_up` to make the first."""
    token, row, weight = _rows_of(sorted_indices, tokens, drop_and_pad, probs, routing_map)
    out = add_up(rows, token, row, weight, tokens)
    if drop_and_pad:
        ids, places = torch.sort(sorted_indices, stable=True)
    else:
        ids, places = sorted_indices.clone(), sorted_indices.clone()
    if weight is None:
        weight = torch.zeros(0, dtype=rows.dtype, device=rows.device)
    return out, places.to(torch.int32), ids, weight


@npu_op(
    "_npu_moe_token_unpermute_with_routing_map(Tensor permuted_tokens, Tensor sorted_indices, "
    "int[] restore_shape, *, Tensor? probs=None, Tensor? routing_map=None, "
    "bool drop_and_pad=False) -> (Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, False, False, False),
)
def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad
):
    """`npu_moe_token_unpermute_with_routing_map` with what its gradient needs.

    The further results: for padded rows, `sorted_indices` in order (third) and where each stood
    (second), else `sorted_indices` in both; and the weight of each index, empty without `probs`.
    """
    return _merged(
        _sum,
        permuted_tokens,
        sorted_indices,
        restore_shape[0],
        probs,
        routing_map,
        drop_and_pad,
    )


@_npu_moe_token_unpermute_with_routing_map.check
def _check_full(permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad):
    must.dtype("permuted_tokens", permuted_tokens, *FLOATS)
    must.ndim("permuted_tokens", permuted_tokens, 2)
    must.dtype("sorted_indices", sorted_indices, torch.int32)
    must.ndim("sorted_indices", sorted_indices, 1)
    hidden = permuted_tokens.size(1)
    shape = list(restore_shape)
    fits = len(shape) == 2 and shape[0] >= 0 and shape[1] == hidden
    must.hold(fits, "restore_shape", f"[tokens, {hidden}]", shape)
    tokens, rows = shape[0], permuted_tokens.size(0)
    if probs is not None and not drop_and_pad:
        must.present("routing_map", routing_map, "together with 'probs'")
    if routing_map is not None:
        check_map(routing_map, tokens, None)
    if drop_and_pad:
        must.shape("sorted_indices", sorted_indices, (rows,))
    else:
        top_k = _top_k(sorted_indices, tokens)
        whole = sorted_indices.numel() == top_k * tokens
        expected = f"of a length that {tokens} tokens divide"
        must.hold(whole, "sorted_indices", expected, sorted_indices.numel())
        most = 512 if routing_map is None else min(512, routing_map.size(1))
        expected = f"of at most {most} experts a token"
        must.hold(top_k <= most, "sorted_indices", expected, top_k)
    if probs is not None:
        must.ndim("probs", probs, 2)
        check_probs(probs, probs if routing_map is None else routing_map, permuted_tokens)
    if drop_and_pad:
        inside("sorted_indices", sorted_indices, tokens)
    else:
        inside("sorted_indices", sorted_indices, rows, low=-1)


@_npu_moe_token_unpermute_with_routing_map.native
def _native_full(permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad):
    add_up = _native_sum if fits(permuted_tokens) and floats(probs) else _sum
    tokens = restore_shape[0]
    return _merged(
        add_up, permuted_tokens, sorted_indices, tokens, probs, routing_map, drop_and_pad
    )


@_npu_moe_token_unpermute_with_routing_map.backward
def _backward_full(
    grad,
    *,
    permuted_tokens,
    sorted_indices,
    restore_shape,
    probs,
    routing_map,
    drop_and_pad,
    result1,
    result2,
):
    d_rows, d_probs = torch.ops.npu.npu_moe_token_unpermute_with_routing_map_grad(
        grad,
        result1 if drop_and_pad else sorted_indices,
        result2 if drop_and_pad else sorted_indices,
        routing_map,
        None if probs is None else permuted_tokens,
        probs,
        drop_and_pad,
        restore_shape,
    )
    found = {"permuted_tokens": d_rows}
    return found | ({} if probs is None else {"probs": d_probs.to(probs.dtype)})


_npu_moe_token_unpermute_with_routing_map.samples = [
    Sample(
        lambda make: (
            make(6, 4),
            torch.tensor([0, 3, 1, 4, 2, 5], dtype=torch.int32, device=make(1).device), [3, 4],
        ),
        lambda make: {
            "probs": make(3, 2), "routing_map": make(3, 2, low=1, high=2, dtype=torch.int8)
        },
    ),
    Sample(
        lambda make: (make(6, 4), make(6, dtype=torch.int32, low=0, high=5), [5, 4]),
        lambda make: {"probs": make(5, 3), "drop_and_pad": True},
        name="padded",
    ),
]  # fmt: skip


_Full = _npu_moe_token_unpermute_with_routing_map


@npu_op(
    "npu_moe_token_unpermute_with_routing_map(Tensor permuted_tokens, Tensor sorted_indices, "
    "int[] restore_shape, *, Tensor? probs=None, Tensor? routing_map=None, "
    "bool drop_and_pad=False) -> Tensor"
)
def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad
):
    r"""Undoes `npu_moe_token_permute_with_routing_map`: each token is the weighted sum of its rows.

    $$ out_t = \sum_{i \in rows(t)} p_i \, permuted_i $$

    Args:
        permuted_tokens: (rows, H); float16, bfloat16 or float32.
        sorted_indices: int32; without padding the rows of the tokens, token by token, -1 for none;
            with padding the token of each row.
        restore_shape: [N, H].
        probs: the weights, (N, E), or None for 1.
        routing_map: (N, E), bool or int8; needed with `probs` unless padded.
        drop_and_pad: as in the permutation.

    Returns:
        (N, H) with the dtype of `permuted_tokens`, summed in float32.
    """
    return _Full.kernel(
        permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad
    )[0]


npu_moe_token_unpermute_with_routing_map.check(_check_full)


@npu_moe_token_unpermute_with_routing_map.native
def _(permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad):
    found = _native_full(
        permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad
    )
    return found if found is NotImplemented else found[0]


@npu_moe_token_unpermute_with_routing_map.backward
def _(grad, *, sorted_indices, drop_and_pad, **arguments):
    places = ids = None
    if drop_and_pad:
        ids, order = torch.sort(sorted_indices, stable=True)
        places = order.to(torch.int32)
    given = {"sorted_indices": sorted_indices, "drop_and_pad": drop_and_pad, **arguments}
    return _backward_full(grad, **given, result1=places, result2=ids)


npu_moe_token_unpermute_with_routing_map.samples = _Full.samples


@npu_op(
    "npu_moe_token_unpermute_with_routing_map_grad(Tensor unpermuted_tokens_grad, "
    "Tensor out_index, Tensor permuted_token_id, Tensor? routing_map, Tensor? permuted_tokens, "
    "Tensor? probs, bool drop_and_pad, int[] restore_shape) -> (Tensor, Tensor)"
)
def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad,
    out_index,
    permuted_token_id,
    routing_map,
    permuted_tokens,
    probs,
    drop_and_pad,
    restore_shape,
):
    """Gradients of `npu_moe_token_unpermute_with_routing_map`: of the rows, and of `probs`.

    `out_index` and `permuted_token_id` are the second and third result of the forward's underscored
    form; without padding both are its `sorted_indices`.
    """
    grad, count, tokens = unpermuted_tokens_grad, out_index.numel(), restore_shape[0]
    row, expert = out_index.long(), None
    if drop_and_pad:
        token = permuted_token_id.long()
        if probs is not None:
            expert = row // max(count // max(probs.size(1), 1), 1)
    else:
        top_k = _top_k(out_index, tokens)
        token = torch.arange(count, device=grad.device) // max(top_k, 1)
        if probs is not None:
            expert = experts_of_tokens(routing_map, top_k)
    spread = wide(grad).index_select(0, token)
    weighted = spread if probs is None else spread * wide(probs)[token, expert].unsqueeze(1)
    d_rows = torch.zeros(count + 1, grad.size(1), dtype=spread.dtype, device=grad.device)
    d_rows = d_rows.index_add(0, torch.where(row < 0, count, row), weighted)[:count]
    if probs is None:
        return d_rows.to(grad.dtype), torch.zeros(0, dtype=grad.dtype, device=grad.device)
    each = (spread * wide(take_rows(permuted_tokens, row))).sum(1)
    d_probs = torch.zeros(probs.shape, dtype=each.dtype, device=grad.device)
    d_probs = d_probs.index_put((token, expert), each, accumulate=True)
    return d_rows.to(grad.dtype), d_probs.to(grad.dtype)


@npu_moe_token_unpermute_with_routing_map_grad.check
def _(
    unpermuted_tokens_grad,
    out_index,
    permuted_token_id,
    routing_map,
    permuted_tokens,
    probs,
    drop_and_pad,
    restore_shape,
):
    must.dtype("unpermuted_tokens_grad", unpermuted_tokens_grad, *FLOATS)
    must.shape("unpermuted_tokens_grad", unpermuted_tokens_grad, tuple(restore_shape))
    must.dtype("out_index", out_index, torch.int32)
    must.ndim("out_index", out_index, 1)
    must.shape("permuted_token_id", permuted_token_id, tuple(out_index.shape))
    count = out_index.numel()
    inside("out_index", out_index, count, low=-1)
    if drop_and_pad:
        inside("permuted_token_id", permuted_token_id, restore_shape[0])
    if probs is not None:
        must.present("permuted_tokens", permuted_tokens, "together with 'probs'")
        if not drop_and_pad:
            must.present("routing_map", routing_map, "together with 'probs'")


npu_moe_token_unpermute_with_routing_map_grad.samples = [
    Sample(
        lambda make: (
            make(3, 4), make(6, dtype=torch.int32, low=0, high=6),
            make(6, dtype=torch.int32, low=0, high=6),
            None, None, None, False, [3, 4],
        )
    ),
]  # fmt: skip
