"""npu_moe_token_unpermute and its gradients: the experts' rows merged back into tokens."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits, floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import SUM, Sharding
from torch_npu.ops._shared._indices import first_bad
from torch_npu.ops.moe._routing import FLOATS, take_rows
from torch_npu.ops.moe.npu_moe_token_permute import MAX_EXPERTS_A_TOKEN, sum_over_experts


def _top_k(probs: torch.Tensor | None) -> int:
    return 1 if probs is None else probs.size(1)


def _kept(rows: torch.Tensor, probs: torch.Tensor | None) -> torch.Tensor:
    """A copy of what the gradient needs of the rows."""
    return (rows[:0] if probs is None else rows).clone(memory_format=torch.contiguous_format)


def _check(rows, rows_name, sorted_indices, probs, padded_mode, restore_shape):
    must.dtype(rows_name, rows, *FLOATS)
    must.ndim(rows_name, rows, 2)
    must.dtype("sorted_indices", sorted_indices, torch.int32)
    must.ndim("sorted_indices", sorted_indices, 1)
    must.dtype("probs", probs, *FLOATS)
    must.ndim("probs", probs, 2)
    top_k = _top_k(probs)
    must.hold(0 < top_k <= MAX_EXPERTS_A_TOKEN, "probs", "of 1 to 512 experts a token", top_k)
    if probs is not None:
        tokens = sorted_indices.numel() // top_k
        must.shape("probs", probs, (tokens, top_k))
        fits = sorted_indices.numel() == tokens * top_k
        expected = f"of a length that {top_k} experts a token divide"
        must.hold(fits, "sorted_indices", expected, sorted_indices.numel())
    must.unset("padded_mode", padded_mode, False)
    sizes = restore_shape or ()
    must.hold(all(s >= 0 for s in sizes), "restore_shape", "sizes (or None)", list(sizes))
    if must.has_data(sorted_indices):
        host = sorted_indices.cpu()
        first_bad("sorted_indices", "non-negative", host, host < 0)


def _backward(grad, *, permuted_tokens, sorted_indices, probs, padded_mode, restore_shape):
    d_rows, d_probs = torch.ops.npu.npu_moe_token_unpermute_grad_v2(
        grad,
        sorted_indices,
        permuted_tokens.size(0),
        permuted_tokens.dtype,
        probs,
        padded_mode,
        restore_shape,
        None if probs is None else permuted_tokens,
    )
    return {"permuted_tokens": d_rows, "probs": d_probs}


_SAMPLES = [
    Sample(
        lambda make: (
            make(8, 6), torch.arange(7, -1, -1, dtype=torch.int32, device=make(1).device),
            make(4, 2),
        )
    ),
    Sample(
        lambda make: (
            make(5, 6), torch.arange(4, -1, -1, dtype=torch.int32, device=make(1).device)
        ),
        name="one expert a token",
    ),
]  # fmt: skip


@npu_op(
    "npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, "
    "bool padded_mode=False, int[]? restore_shape=None) -> Tensor"
)
def npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs):
    r"""Undoes `npu_moe_token_permute`: each token becomes the weighted sum of its K rows.

    $$ out_i = \sum_{j<K} probs_{i,j} \, permuted_{sorted\_indices_{iK+j}} $$

    Args:
        permuted_tokens: (rows, H); float16, bfloat16 or float32.
        sorted_indices: where each (token, expert) pair's row is, (N * K), int32, not negative;
            places behind the last row (dropped pairs) add nothing.
        probs: the weights, (N, K) with K at most 512, or None for one expert a token and weight 1.
        padded_mode: False (upstream supports nothing else).
        restore_shape: the shape before the permutation, which only padded mode would need.

    Returns:
        (N, H) with the dtype of `permuted_tokens`, summed in float32.
    """
    out = sum_over_experts(permuted_tokens, sorted_indices, _top_k(probs), probs)
    return out.to(permuted_tokens.dtype)


@npu_moe_token_unpermute.check
def _check_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape):
    _check(permuted_tokens, "permuted_tokens", sorted_indices, probs, padded_mode, restore_shape)


@npu_moe_token_unpermute.native
def _native(permuted_tokens, sorted_indices, probs):
    if not fits(permuted_tokens) or not floats(probs):
        return NotImplemented
    places = sorted_indices.view(-1, _top_k(probs))
    return torch.ops.softnpu.finalize_routing(
        permuted_tokens, places, probs, None, None, None, None
    )


npu_moe_token_unpermute.backward(_backward)


@npu_moe_token_unpermute.sharding
def _():
    yield Sharding((1,), {"permuted_tokens": 1})


npu_moe_token_unpermute.samples = _SAMPLES


@npu_op(
    "_npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, "
    "bool padded_mode=False, int[]? restore_shape=None) "
    "-> (Tensor unpermuted_tokens, Tensor permuted_tokens_for_backward)",
    output_differentiability=(True, False),
)
def _npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs):
    """`npu_moe_token_unpermute` with what its gradient needs: the rows, if `probs` are given."""
    out = npu_moe_token_unpermute.kernel(permuted_tokens, sorted_indices, probs)
    return out, _kept(permuted_tokens, probs)


_npu_moe_token_unpermute.check(_check_unpermute)


@_npu_moe_token_unpermute.native
def _(permuted_tokens, sorted_indices, probs):
    out = _native(permuted_tokens, sorted_indices, probs)
    return out if out is NotImplemented else (out, _kept(permuted_tokens, probs))


_npu_moe_token_unpermute.backward(_backward)


@_npu_moe_token_unpermute.sharding
def _():
    yield Sharding((1, 1), {"permuted_tokens": 1})


_npu_moe_token_unpermute.samples = _SAMPLES


def _gradients(grad, sorted_indices, rows, dtype, probs, permuted_tokens):
    top_k = _top_k(probs)
    there = sorted_indices < rows
    place = torch.where(there, sorted_indices, rows).long()
    spread = wide(grad)
    if top_k > 1:
        spread = spread.repeat_interleave(top_k, 0)
    weighted = spread if probs is None else spread * wide(probs).reshape(-1, 1)
    d_rows = torch.zeros(rows + 1, grad.size(1), dtype=weighted.dtype, device=grad.device)
    d_rows = d_rows.index_add(0, place, weighted)[:rows].to(dtype)
    if probs is None:
        return d_rows, torch.zeros(0, dtype=grad.dtype, device=grad.device)
    d_probs = (spread * wide(take_rows(permuted_tokens, sorted_indices))).sum(1)
    return d_rows, d_probs.reshape(probs.shape).to(probs.dtype)


def _native_gradients(grad, sorted_indices, rows, dtype, probs, permuted_tokens):
    values = None if probs is None else permuted_tokens
    if grad.dtype != dtype or not fits(grad, values) or not floats(probs):
        return _gradients(grad, sorted_indices, rows, dtype, probs, permuted_tokens)
    places = sorted_indices.view(-1, _top_k(probs))
    d_rows, d_probs = torch.ops.softnpu.finalize_routing_backward(grad, places, rows, probs, values)
    return d_rows, d_probs.to(grad.dtype if probs is None else probs.dtype)


@npu_op(
    "npu_moe_token_unpermute_grad_v2(Tensor grad_unpermuted_tokens, Tensor sorted_indices, "
    "int permuted_tokens_size_0, ScalarType permuted_tokens_dtype, Tensor? probs=None, "
    "bool padded_mode=False, int[]? restore_shape=None, Tensor? permuted_tokens=None) "
    "-> (Tensor, Tensor)"
)
def npu_moe_token_unpermute_grad_v2(
    grad_unpermuted_tokens,
    sorted_indices,
    permuted_tokens_size_0,
    permuted_tokens_dtype,
    probs,
    permuted_tokens,
):
    r"""Gradients of `npu_moe_token_unpermute`.

    $$ dpermuted_{sorted\_indices_{iK+j}} = probs_{i,j}\, dout_i, \qquad
       dprobs_{i,j} = dout_i \cdot permuted_{sorted\_indices_{iK+j}} $$

    Args:
        grad_unpermuted_tokens: dout, (N, H).
        sorted_indices: as in the forward.
        permuted_tokens_size_0: how many rows the forward had.
        permuted_tokens_dtype: their dtype.
        probs: as in the forward.
        padded_mode: False.
        restore_shape: as in the forward.
        permuted_tokens: the forward's rows, needed with `probs`.

    Returns:
        The gradients of the rows and of `probs` (empty without `probs`).
    """
    return _gradients(
        grad_unpermuted_tokens,
        sorted_indices,
        permuted_tokens_size_0,
        permuted_tokens_dtype,
        probs,
        permuted_tokens,
    )


@npu_moe_token_unpermute_grad_v2.check
def _(
    grad_unpermuted_tokens,
    sorted_indices,
    permuted_tokens_size_0,
    permuted_tokens_dtype,
    probs,
    padded_mode,
    restore_shape,
    permuted_tokens,
):
    grad = grad_unpermuted_tokens
    name = "grad_unpermuted_tokens"
    _check(grad, name, sorted_indices, probs, padded_mode, restore_shape)
    must.shape(name, grad, (sorted_indices.numel() // _top_k(probs), None))
    must.choice("permuted_tokens_dtype", permuted_tokens_dtype, FLOATS)
    if probs is not None:
        must.present("permuted_tokens", permuted_tokens, "together with 'probs'")
        shape = (permuted_tokens_size_0, grad.size(1))
        must.shape("permuted_tokens", permuted_tokens, shape)


@npu_moe_token_unpermute_grad_v2.native
def _(
    grad_unpermuted_tokens,
    sorted_indices,
    permuted_tokens_size_0,
    permuted_tokens_dtype,
    probs,
    permuted_tokens,
):
    return _native_gradients(
        grad_unpermuted_tokens,
        sorted_indices,
        permuted_tokens_size_0,
        permuted_tokens_dtype,
        probs,
        permuted_tokens,
    )


@npu_moe_token_unpermute_grad_v2.sharding
def _():
    yield Sharding((1, SUM), {"grad_unpermuted_tokens": 1, "permuted_tokens": 1})


npu_moe_token_unpermute_grad_v2.samples = [
    Sample(
        lambda make: (
            make(4, 6), torch.arange(7, -1, -1, dtype=torch.int32, device=make(1).device),
            8, torch.float32, make(4, 2), False, None, make(8, 6),
        )
    ),
]  # fmt: skip


@npu_op(
    "npu_moe_token_unpermute_grad(Tensor permuted_tokens, Tensor grad_unpermuted_tokens, "
    "Tensor sorted_indices, Tensor? probs=None, bool padded_mode=False, int[]? restore_shape=None) "
    "-> (Tensor, Tensor)"
)
def npu_moe_token_unpermute_grad(permuted_tokens, grad_unpermuted_tokens, sorted_indices, probs):
    """Gradients of `npu_moe_token_unpermute` from its inputs; see the v2 form."""
    rows = permuted_tokens
    return _gradients(grad_unpermuted_tokens, sorted_indices, rows.size(0), rows.dtype, probs, rows)


@npu_moe_token_unpermute_grad.check
def _(permuted_tokens, grad_unpermuted_tokens, sorted_indices, probs, padded_mode, restore_shape):
    grad, name = grad_unpermuted_tokens, "grad_unpermuted_tokens"
    must.ndim("permuted_tokens", permuted_tokens, 2)
    must.same_dtype("permuted_tokens", permuted_tokens, name, grad)
    _check(grad, name, sorted_indices, probs, padded_mode, restore_shape)
    must.shape(name, grad, (sorted_indices.numel() // _top_k(probs), permuted_tokens.size(-1)))


@npu_moe_token_unpermute_grad.native
def _(permuted_tokens, grad_unpermuted_tokens, sorted_indices, probs):
    rows = permuted_tokens
    return _native_gradients(
        grad_unpermuted_tokens, sorted_indices, rows.size(0), rows.dtype, probs, rows
    )


@npu_moe_token_unpermute_grad.sharding
def _():
    yield Sharding((1, SUM), {"grad_unpermuted_tokens": 1, "permuted_tokens": 1})


npu_moe_token_unpermute_grad.samples = [
    Sample(
        lambda make: (
            make(8, 6), make(4, 6),
            torch.arange(7, -1, -1, dtype=torch.int32, device=make(1).device), make(4, 2),
        )
    ),
]  # fmt: skip
