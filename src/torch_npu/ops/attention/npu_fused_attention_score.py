"""npu_fused_attention_score with its fwd, grad and backward forms: BERT's attention score."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, kernel_generator, npu_op


def _turned(tensor: torch.Tensor, transposed: bool) -> torch.Tensor:
    """The tensor as (B, N, S, D), where it came as (B, N, D, S)."""
    return tensor.mT if transposed else tensor


def _check(query, key, value, mask, keep_prob, query_transpose, key_transpose, value_transpose):
    names = ("query_layer", "key_layer", "value_layer", "attention_mask")
    for name, tensor in zip(names, (query, key, value, mask), strict=True):
        must.dtype(name, tensor, torch.float16)
        must.ndim(name, tensor, 4)
    batch, heads, rows, size = _turned(query, query_transpose).shape
    for name, tensor, turn in (
        ("key_layer", key, key_transpose),
        ("value_layer", value, value_transpose),
    ):
        shape = (batch, heads, rows, size)
        must.shape(name, tensor, (*shape[:2], *reversed(shape[2:])) if turn else shape)
    fits = all(
        have in (1, want) for have, want in zip(mask.shape, (batch, heads, rows, rows), strict=True)
    )
    expected = f"broadcastable to {(batch, heads, rows, rows)}"
    must.hold(fits, "attention_mask", expected, tuple(mask.shape), ErrCode.PARAM)
    must.hold(0 < keep_prob <= 1, "keep_prob", "above 0 and up to 1", keep_prob)


def _unsupported(**flags: bool) -> None:
    for name, value in flags.items():
        must.hold(
            not value,
            name,
            "False (nothing documents what True computes)",
            value,
            ErrCode.NOT_SUPPORT,
        )


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """(B, N, S, D) as (B * S, N * D), the shape in which scores leave and gradients come."""
    return tensor.transpose(1, 2).flatten(2).flatten(0, 1)


@npu_op(
    "npu_fused_attention_score_fwd(Tensor query_layer, Tensor key_layer, Tensor value_layer, "
    "Tensor attention_mask, Scalar scale, float keep_prob, bool query_transpose=False, bool "
    "key_transpose=False, bool bmm_score_transpose_a=False, bool "
    "bmm_score_transpose_b=False, bool value_transpose=False, bool dx_transpose=False) -> "
    "(Tensor, Tensor, Tensor)",
    random=True,
    core="MIX_AIC",
    aclop=True,
)
def npu_fused_attention_score_fwd(
    query_layer,
    key_layer,
    value_layer,
    attention_mask,
    scale,
    keep_prob,
    query_transpose,
    key_transpose,
    bmm_score_transpose_b,
):
    """`npu_fused_attention_score` with what its gradient needs.

    Returns:
        The score (B * S, N * D), the softmax before dropout (B, N, S, S), and the dropout mask:
        uint8, one byte for each probability, 1 keeps.
    """
    query, key = _turned(query_layer, query_transpose), _turned(key_layer, key_transpose)
    value = _turned(value_layer, bmm_score_transpose_b)
    scores = wide(query) @ wide(key).mT * scale + wide(attention_mask)
    softmax = scores.softmax(-1)
    draw = torch.empty_like(softmax).uniform_(generator=kernel_generator())
    kept = draw < keep_prob
    context = (softmax * kept / keep_prob) @ wide(value)
    dtype = query_layer.dtype
    return _rows(context.to(dtype)), softmax.to(dtype), kept.to(torch.uint8).flatten()


@npu_fused_attention_score_fwd.check
def _check_forward(
    query_layer,
    key_layer,
    value_layer,
    attention_mask,
    keep_prob,
    query_transpose,
    key_transpose,
    bmm_score_transpose_a,
    bmm_score_transpose_b,
    value_transpose,
    dx_transpose,
):
    _unsupported(bmm_score_transpose_a=bmm_score_transpose_a, dx_transpose=dx_transpose)
    must.hold(
        value_transpose == bmm_score_transpose_b,
        "value_transpose",
        f"bmm_score_transpose_b ({bmm_score_transpose_b}), its part in the forward pass",
        value_transpose,
    )
    _check(query_layer, key_layer, value_layer, attention_mask, keep_prob, query_transpose,
           key_transpose, value_transpose)  # fmt: skip


@npu_fused_attention_score_fwd.backward
def _(
    grad,
    _dsoftmax,
    _dmask,
    *,
    query_layer,
    key_layer,
    value_layer,
    scale,
    keep_prob,
    query_transpose,
    key_transpose,
    value_transpose,
    dx_transpose,
    result1,
    result2,
):
    dq, dk, dv = torch.ops.npu.npu_fused_attention_score_backward(
        grad, result1, query_layer, key_layer, value_layer, result2,
        scale, keep_prob, query_transpose, key_transpose, value_transpose,
        dx_transpose,
    )  # fmt: skip
    return {
        "query_layer": _turned(dq, query_transpose),
        "key_layer": _turned(dk, key_transpose),
        "value_layer": _turned(dv, value_transpose),
    }


npu_fused_attention_score_fwd.samples = [
    Sample(
        lambda make: (
            *(make(2, 3, 16, 16, dtype=torch.float16) for _ in range(3)),
            make(2, 3, 16, 16, dtype=torch.float16),
            0.25,
            1.0,
        )
    ),
]


@npu_op(
    "npu_fused_attention_score(Tensor query_layer, Tensor key_layer, Tensor value_layer, "
    "Tensor attention_mask, Scalar scale, float keep_prob, bool query_transpose=False, bool "
    "key_transpose=False, bool bmm_score_transpose_a=False, bool "
    "bmm_score_transpose_b=False, bool value_transpose=False, bool dx_transpose=False) -> "
    "Tensor",
    random=True,
    core="MIX_AIC",
    aclop=True,
)
def npu_fused_attention_score(
    query_layer,
    key_layer,
    value_layer,
    attention_mask,
    scale,
    keep_prob,
    query_transpose,
    key_transpose,
    bmm_score_transpose_b,
):
    r"""The attention score of BERT-like layers, its heads side by side.

    $$ y = \mathrm{dropout}(\mathrm{softmax}(scale \cdot Q K^T + mask)) \cdot V $$

    Args:
        query_layer, key_layer, value_layer: float16 (B, N, S, D), all the same shape.
        attention_mask: float16, broadcastable to (B, N, S, S); added to the scores.
        scale: the factor of Q K^T.
        keep_prob: the probability that dropout keeps a weight; what it keeps is divided by it.
        query_transpose, key_transpose: the tensor comes as (B, N, D, S).
        bmm_score_transpose_b, value_transpose: the value comes as (B, N, D, S); the first tells the
            forward pass, the second the backward pass, so they go together.
        bmm_score_transpose_a, dx_transpose: False.

    Returns:
        float16 (B * S, N * D): the tokens' heads side by side.

    Differs from upstream: upstream wants tensors in format 29 (NZ) on Atlas training and inference
    cards; here any format on any chip does. bmm_score_transpose_a and dx_transpose, which no page
    explains, raise.
    """
    return npu_fused_attention_score_fwd.kernel(
        query_layer,
        key_layer,
        value_layer,
        attention_mask,
        scale,
        keep_prob,
        query_transpose,
        key_transpose,
        bmm_score_transpose_b,
    )[0]


npu_fused_attention_score.check(_check_forward)
npu_fused_attention_score.samples = npu_fused_attention_score_fwd.samples


def _differentiable(query_layer, key_layer, value_layer, *args, **kwargs):
    """Autograd of the short form: by the fwd form, as upstream does, where a gradient is needed."""
    layers = (query_layer, key_layer, value_layer)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in layers):
        return torch.ops.npu.npu_fused_attention_score_fwd(*layers, *args, **kwargs)[0]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.npu.npu_fused_attention_score(*layers, *args, **kwargs)


_autograd = torch.library.Library("npu", "IMPL")  # noqa: TOR901
_autograd.impl("npu_fused_attention_score", _differentiable, "AutogradPrivateUse1")


def _gradients(grad, softmax, query, key, value, mask, scale, keep_prob):
    """Gradients of query, key and value, (B, N, S, D), from that of the score, (B * S, N * D)."""
    batch, heads, rows, size = query.shape
    grad = wide(grad).reshape(batch, rows, heads, size).transpose(1, 2)
    weights = wide(softmax)
    kept = mask.view(weights.shape).to(weights.dtype) / keep_prob
    dweights = grad @ wide(value).mT * kept
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdim=True)) * scale
    found = (dscores @ wide(key), dscores.mT @ wide(query), (weights * kept).mT @ grad)
    return tuple(g.to(query.dtype) for g in found)


def _check_gradients(
    grad_output, softmax_output, query, key, value, mask, keep_prob, turns, dx_transpose
):
    _unsupported(dx_transpose=dx_transpose)
    must.ndim("query_layer", query, 4)
    must.dtype("grad_output", grad_output, torch.float16)
    must.dtype("softmax_output", softmax_output, torch.float16)
    batch, heads, rows, size = _turned(query, turns[0]).shape
    must.shape("grad_output", grad_output, (batch * rows, heads * size))
    must.shape("softmax_output", softmax_output, (batch, heads, rows, rows))
    names = ("query_layer", "key_layer", "value_layer")
    for name, tensor, turn in zip(names, (query, key, value), turns, strict=True):
        must.dtype(name, tensor, torch.float16)
        must.shape(name, tensor, (batch, heads, size, rows) if turn else (batch, heads, rows, size))
    must.dtype("mask", mask, torch.uint8)
    must.shape("mask", mask, (batch * heads * rows * rows,))
    must.hold(0 < keep_prob <= 1, "keep_prob", "above 0 and up to 1", keep_prob)


@npu_op(
    "npu_fused_attention_score_backward(Tensor grad_output, Tensor softmax_output, Tensor "
    "query_layer, Tensor key_layer, Tensor value_layer, Tensor mask, Scalar scale, float "
    "keep_prob, bool query_transpose=False, bool key_transpose=False, bool "
    "value_transpose=False, bool dx_transpose=False) -> (Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    aclop=True,
)
def npu_fused_attention_score_backward(
    grad_output,
    softmax_output,
    query_layer,
    key_layer,
    value_layer,
    mask,
    scale,
    keep_prob,
    query_transpose,
    key_transpose,
    value_transpose,
):
    """Gradients of query, key and value of `npu_fused_attention_score_fwd`, each (B, N, S, D).

    `mask` is the dropout mask, one byte a probability; the transpose flags tell which inputs came
    as (B, N, D, S).
    """
    query, key = _turned(query_layer, query_transpose), _turned(key_layer, key_transpose)
    value = _turned(value_layer, value_transpose)
    return _gradients(grad_output, softmax_output, query, key, value, mask, scale, keep_prob)


@npu_fused_attention_score_backward.check
def _check_backward(
    grad_output,
    softmax_output,
    query_layer,
    key_layer,
    value_layer,
    mask,
    keep_prob,
    query_transpose,
    key_transpose,
    value_transpose,
    dx_transpose,
):
    turns = (query_transpose, key_transpose, value_transpose)
    _check_gradients(grad_output, softmax_output, query_layer, key_layer, value_layer, mask,
                     keep_prob, turns, dx_transpose)  # fmt: skip


npu_fused_attention_score_backward.samples = [
    Sample(
        lambda make: (
            make(32, 48, dtype=torch.float16),
            *(make(2, 3, 16, 16, dtype=torch.float16) for _ in range(4)),
            make(2 * 3 * 16 * 16, dtype=torch.uint8, low=0, high=2),
            0.25,
            0.5,
        )
    ),
]


@npu_op(
    "npu_fused_attention_score_grad(Tensor grad_output, Tensor softmax_output, Tensor "
    "query_layer, Tensor key_layer, Tensor value_layer, Tensor mask, Scalar scale, float "
    "keep_prob, bool query_transpose=False, bool key_transpose=False, bool "
    "value_transpose=False, bool dx_transpose=False) -> (Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    aclop=True,
)
def npu_fused_attention_score_grad(
    grad_output,
    softmax_output,
    query_layer,
    key_layer,
    value_layer,
    mask,
    scale,
    keep_prob,
    query_transpose,
    key_transpose,
    value_transpose,
):
    """`npu_fused_attention_score_backward` with gradients of the score's shape, (B * S, N * D)."""
    found = npu_fused_attention_score_backward.kernel(
        grad_output,
        softmax_output,
        query_layer,
        key_layer,
        value_layer,
        mask,
        scale,
        keep_prob,
        query_transpose,
        key_transpose,
        value_transpose,
    )
    return tuple(_rows(g).contiguous() for g in found)


npu_fused_attention_score_grad.check(_check_backward)
npu_fused_attention_score_grad.samples = npu_fused_attention_score_backward.samples
