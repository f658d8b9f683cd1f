"""npu_fused_floyd_attention and its gradient: attention of pairs (i, k) over the paths i-j-k."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention._sparse import check_family

_ARGUMENTS = "Tensor query_ik, Tensor key_ij, Tensor value_ij, Tensor key_jk, Tensor value_jk"


@npu_op(
    f"npu_fused_floyd_attention({_ARGUMENTS}, *, Tensor? atten_mask=None, float scale_value=1.) "
    "-> (Tensor, Tensor, Tensor)",
    output_differentiability=(False, False, True),
    core="MIX_AIC",
    product=True,
)
def npu_fused_floyd_attention(
    query_ik, key_ij, value_ij, key_jk, value_jk, atten_mask, scale_value
):
    r"""Attention of each pair (i, k) over the nodes j between them.

    $$ w_{ikj} = \mathrm{softmax}_j(scale \cdot (q_{ik} k_{ij} + q_{ik} k_{jk})), \quad
       out_{ik} = \sum_j w_{ikj} (v_{ij} + v_{jk}) $$

    Args:
        query_ik: (B, H, N, M, D), float16, bfloat16 or float32; N is a multiple of 16, M and K of 128, D is 32, 64 or
            128.
        key_ij: (B, H, N, K, D).
        value_ij: (B, H, N, K, D).
        key_jk: (B, H, K, M, D).
        value_jk: (B, H, K, M, D).
        atten_mask: (B, 1, N, 1, K), bool or uint8: 1 where j is hidden from i.
        scale_value: factor of the scores.

    Returns:
        The maxima and the sums of the scores, (B, H, N, M, 8), float32, each value eight times, and the attention,
        like `query_ik`.

    Constraints: Atlas A2 and A3.
    """
    out = query_ik.new_empty(query_ik.shape)
    shape = (*query_ik.shape[:4], 8)
    tops, sums = (query_ik.new_empty(shape, dtype=torch.float32) for _ in range(2))
    key, value = wide(key_jk), wide(value_jk)
    for i in range(query_ik.shape[2]):
        scores = _scores(wide(query_ik[:, :, i]), wide(key_ij[:, :, i]), key, scale_value)
        scores = _masked(scores, atten_mask, i)
        top = scores.amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.masked_fill(total == 0, 1)
        found = weights @ wide(value_ij[:, :, i])
        found = found + torch.einsum("bhmk,bhkmd->bhmd", weights, value)
        out[:, :, i] = found.to(out.dtype)
        tops[:, :, i] = top
        sums[:, :, i] = total
    return tops, sums, out


def _scores(query, key_ij, key_jk, scale):
    """(B, H, M, K) for one i."""
    return (query @ key_ij.mT + torch.einsum("bhmd,bhkmd->bhmk", query, key_jk)) * scale


def _masked(scores, mask, i):
    if mask is None:
        return scores
    return scores.masked_fill(mask[:, :, i] != 0, -torch.inf)  # (B, 1, 1, K)


@npu_fused_floyd_attention.meta
def _(query_ik):
    shape = (*query_ik.shape[:4], 8)
    new = [query_ik.new_empty(shape, dtype=torch.float32) for _ in range(2)]
    return *new, query_ik.new_empty(query_ik.shape)


def _check(query_ik, key_ij, value_ij, key_jk, value_jk, atten_mask):
    check_family("query_ik", "A2", "A3")
    must.dtype("query_ik", query_ik, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("query_ik", query_ik, 5)
    batch, heads, n, m, d = query_ik.shape
    must.ndim("key_ij", key_ij, 5)
    k = key_ij.shape[3]
    named = (
        ("key_ij", key_ij, (batch, heads, n, k, d)),
        ("value_ij", value_ij, (batch, heads, n, k, d)),
        ("key_jk", key_jk, (batch, heads, k, m, d)),
        ("value_jk", value_jk, (batch, heads, k, m, d)),
    )
    for name, tensor, shape in named:
        must.same_dtype(name, tensor, "query_ik", query_ik)
        must.shape(name, tensor, shape)
    must.hold(d in (32, 64, 128), "query_ik", "of head size 32, 64 or 128", d)
    must.hold(n > 0 and n % 16 == 0, "query_ik", "of a multiple of 16 nodes i", n)
    must.hold(m > 0 and m % 128 == 0, "query_ik", "of a multiple of 128 nodes k", m)
    must.hold(k > 0 and k % 128 == 0, "key_ij", "of a multiple of 128 nodes j", k)
    must.hold(batch * heads > 0, "query_ik", "of at least one batch and head", (batch, heads))
    must.dtype("atten_mask", atten_mask, torch.bool, torch.uint8)
    must.shape("atten_mask", atten_mask, (batch, 1, n, 1, k))


@npu_fused_floyd_attention.check
def _(query_ik, key_ij, value_ij, key_jk, value_jk, atten_mask):
    _check(query_ik, key_ij, value_ij, key_jk, value_jk, atten_mask)


@npu_fused_floyd_attention.backward
def _(
    grad,
    *,
    query_ik,
    key_ij,
    value_ij,
    key_jk,
    value_jk,
    atten_mask,
    scale_value,
    result0,
    result1,
    result2,
):
    found = npu_fused_floyd_attention_backward(
        grad,
        query_ik,
        key_ij,
        value_ij,
        key_jk,
        value_jk,
        result2,
        result0,
        result1,
        atten_mask=atten_mask,
        scale_value=scale_value,
    )
    names = ("query_ik", "key_ij", "value_ij", "key_jk", "value_jk")
    return dict(zip(names, found, strict=True))


@npu_op(
    f"npu_fused_floyd_attention_backward(Tensor grad_output, {_ARGUMENTS}, Tensor attention_out, "
    "Tensor softmax_max, Tensor softmax_sum, *, Tensor? atten_mask=None, float scale_value=1.) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_fused_floyd_attention_backward(
    grad_output,
    query_ik,
    key_ij,
    value_ij,
    key_jk,
    value_jk,
    attention_out,
    softmax_max,
    softmax_sum,
    atten_mask,
    scale_value,
):
    """The gradients of `npu_fused_floyd_attention`.

    Args:
        grad_output: the gradient of the attention.
        query_ik: as in the forward operator, like the next four.
        key_ij: (B, H, N, K, D).
        value_ij: (B, H, N, K, D).
        key_jk: (B, H, K, M, D).
        value_jk: (B, H, K, M, D).
        attention_out: the attention.
        softmax_max: the maxima of the scores.
        softmax_sum: their sums.
        atten_mask: (B, 1, N, 1, K), bool or uint8.
        scale_value: factor of the scores.

    Returns:
        The gradients of query_ik, key_ij, value_ij, key_jk and value_jk.
    """
    given = (query_ik, key_ij, value_ij, key_jk, value_jk)
    made = [torch.zeros(t.shape, dtype=wide(t).dtype) for t in given]
    key, value = wide(key_jk), wide(value_jk)
    for i in range(query_ik.shape[2]):
        query, own = wide(query_ik[:, :, i]), wide(key_ij[:, :, i])
        scores = _masked(_scores(query, own, key, scale_value), atten_mask, i)
        total = softmax_sum[:, :, i, :, :1]
        weights = (scores - softmax_max[:, :, i, :, :1]).exp() / total.masked_fill(total == 0, 1)
        outer = wide(grad_output[:, :, i])
        of_weights = outer @ wide(value_ij[:, :, i]).mT
        of_weights = of_weights + torch.einsum("bhmd,bhkmd->bhmk", outer, value)
        inner = (outer * wide(attention_out[:, :, i])).sum(-1, keepdim=True)
        of_scores = weights * (of_weights - inner) * scale_value
        found = of_scores @ own + torch.einsum("bhmk,bhkmd->bhmd", of_scores, key)
        made[0][:, :, i] = found
        made[1][:, :, i] = of_scores.mT @ query
        made[2][:, :, i] = weights.mT @ outer
        made[3] += torch.einsum("bhmk,bhmd->bhkmd", of_scores, query)
        made[4] += torch.einsum("bhmk,bhmd->bhkmd", weights, outer)
    return tuple(g.to(t.dtype) for g, t in zip(made, given, strict=True))


@npu_fused_floyd_attention_backward.meta
def _(query_ik, key_ij, value_ij, key_jk, value_jk):
    given = (query_ik, key_ij, value_ij, key_jk, value_jk)
    return tuple(t.new_empty(t.shape) for t in given)


@npu_fused_floyd_attention_backward.check
def _(
    grad_output,
    query_ik,
    key_ij,
    value_ij,
    key_jk,
    value_jk,
    attention_out,
    softmax_max,
    softmax_sum,
    atten_mask,
):
    _check(query_ik, key_ij, value_ij, key_jk, value_jk, atten_mask)
    for name, tensor in (("grad_output", grad_output), ("attention_out", attention_out)):
        must.same_dtype(name, tensor, "query_ik", query_ik)
        must.shape(name, tensor, tuple(query_ik.shape))
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, (*query_ik.shape[:4], 8))


def _half(make, *shape, **options):
    return make(*shape, dtype=torch.bfloat16, **options)


def _inputs(make):
    return (
        _half(make, 1, 1, 16, 128, 32),
        _half(make, 1, 1, 16, 128, 32, seed=1),
        _half(make, 1, 1, 16, 128, 32, seed=2),
        _half(make, 1, 1, 128, 128, 32, seed=3),
        _half(make, 1, 1, 128, 128, 32, seed=4),
    )


npu_fused_floyd_attention.samples = [
    Sample(_inputs, {"scale_value": 0.2}),
    Sample(_inputs, lambda make: {"atten_mask": make(1, 1, 16, 1, 128, dtype=torch.bool)}),
]
npu_fused_floyd_attention_backward.samples = [
    Sample(
        lambda make: (
            _half(make, 1, 1, 16, 128, 32, seed=5),
            *_inputs(make),
            _half(make, 1, 1, 16, 128, 32, seed=6),
            make(1, 1, 16, 128, 1, low=4, high=6).expand(1, 1, 16, 128, 8).contiguous(),
            make(1, 1, 16, 128, 1, low=50, high=90).expand(1, 1, 16, 128, 8).contiguous(),
        ),
        {"scale_value": 0.2},
    ),
]
