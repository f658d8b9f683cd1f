"""npu_mhc_post and its backward: the residual streams after a layer."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


def _check_streams(x, h_res, h_out, h_post):
    said = "x dtype must be FLOAT16 or BFLOAT16"
    must.dtype("x", x, torch.float16, torch.bfloat16, upstream=said)
    shape = tuple(x.shape)
    said = "x dim must be 3 or 4"
    must.hold(len(shape) in (3, 4), "x", "a tensor of 3 to 4 dimensions", shape, upstream=said)
    *tokens, streams, width = shape
    must.dtype("h_res", h_res, torch.float32)
    if h_res is not None:
        square, held = (*tokens, streams, streams), tuple(h_res.shape)
        said = f"h_res shape must be {square}"
        must.hold(held == square, "h_res", f"of shape {square}", held, upstream=said)
    must.same_dtype("h_out", h_out, "x", x)
    must.shape("h_out", h_out, (*tokens, width))
    must.dtype("h_post", h_post, torch.float32, upstream="h_post dtype must be FLOAT32")
    must.shape("h_post", h_post, (*tokens, streams))


@npu_op("npu_mhc_post(Tensor x, Tensor? h_res, Tensor h_out, Tensor h_post) -> Tensor")
def npu_mhc_post(x, h_res, h_out, h_post):
    r"""The streams after a layer: those before it, mixed, and the layer's output for each.

    $$ y_j = \sum_i H^{res}_{ij}\, x_i + H^{post}_j\, h^{out} $$

    Args:
        x: the n streams before the layer, (B, S, n, D) or (T, n, D); float16 or bfloat16.
        h_res: the mixing matrix of each token, (B, S, n, n) or (T, n, n) float32; None leaves the
            streams as they are.
        h_out: the layer's output, (B, S, D) or (T, D), of the dtype of `x`.
        h_post: the weight of the output in each stream, (B, S, n) or (T, n) float32.

    Returns:
        y, with the shape and dtype of `x`.

    Differs from upstream: upstream's page names Ascend950 only, here every chip computes it.
    """
    kept = wide(x) if h_res is None else wide(h_res).transpose(-1, -2) @ wide(x)
    return (kept + wide(h_post)[..., None] * wide(h_out)[..., None, :]).to(x.dtype)


@npu_mhc_post.check
def _(x, h_res, h_out, h_post):
    _check_streams(x, h_res, h_out, h_post)


@npu_mhc_post.backward
def _(grad, *, x, h_res, h_out, h_post):
    dx, dres, dout, dpost = npu_mhc_post_backward(grad, x, h_res, h_out, h_post)
    gradients = {"x": dx, "h_out": dout, "h_post": dpost}
    return gradients if h_res is None else {**gradients, "h_res": dres}


npu_mhc_post.samples = [
    Sample(
        lambda make: (
            make(2, 3, 4, 16, dtype=torch.bfloat16),
            make(2, 3, 4, 4),
            make(2, 3, 16, dtype=torch.bfloat16),
            make(2, 3, 4),
        )
    ),
    Sample(
        lambda make: (
            make(3, 4, 16, dtype=torch.float16),
            None,
            make(3, 16, dtype=torch.float16),
            make(3, 4),
        )
    ),
]


@npu_op(
    "npu_mhc_post_backward(Tensor grad_y, Tensor x, Tensor? h_res, Tensor h_out, Tensor h_post)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
def npu_mhc_post_backward(grad_y, x, h_res, h_out, h_post):
    r"""Gradients of `npu_mhc_post`.

    $$ dx_i = \sum_j H^{res}_{ij} dy_j, \quad dH^{res}_{ij} = x_i \cdot dy_j, \quad
       dh^{out} = \sum_j H^{post}_j dy_j, \quad dH^{post}_j = h^{out} \cdot dy_j $$

    Args:
        grad_y: dy, with the shape and dtype of `x`.
        x: as in the forward.
        h_res: as in the forward.
        h_out: as in the forward.
        h_post: as in the forward.

    Returns:
        The gradients of x, h_res, h_out and h_post, with their shapes and dtypes; that of an absent
        h_res is zero.
    """
    dy, streams = wide(grad_y), wide(x)
    dres = streams @ dy.transpose(-1, -2)
    if h_res is None:
        dx, dres = dy, torch.zeros_like(dres)
    else:
        dx = wide(h_res) @ dy
    dout = (wide(h_post)[..., None] * dy).sum(-2)
    dpost = (wide(h_out)[..., None, :] * dy).sum(-1)
    return dx.to(x.dtype), dres, dout.to(h_out.dtype), dpost


@npu_mhc_post_backward.check
def _(grad_y, x, h_res, h_out, h_post):
    _check_streams(x, h_res, h_out, h_post)
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.same_dtype("grad_y", grad_y, "x", x)
    shape, held = tuple(x.shape), tuple(grad_y.shape)
    said = "grad_y shape must be the same as x shape"
    must.hold(held == shape, "grad_y", f"of shape {shape}", held, upstream=said)


npu_mhc_post_backward.samples = [
    Sample(
        lambda make: (
            make(3, 4, 16, dtype=torch.float16),
            make(3, 4, 16, dtype=torch.float16),
            make(3, 4, 4),
            make(3, 16, dtype=torch.float16),
            make(3, 4),
        )
    ),
]
