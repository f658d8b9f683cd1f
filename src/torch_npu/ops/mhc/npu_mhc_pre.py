"""npu_mhc_pre and its backward: the input of a layer and the maps, from the residual streams."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.mhc._rows import check_streams, hf32, repeated


@npu_op(
    "npu_mhc_pre(Tensor x, Tensor phi, Tensor alpha, Tensor bias, *, Tensor? gamma=None,"
    " float norm_eps=1e-6, float hc_eps=1e-6, int out_flag=0, int inner_precise=0)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, True, True, False, False, False),
    product=True,
)
def npu_mhc_pre(x, phi, alpha, bias, gamma, norm_eps, hc_eps, out_flag, inner_precise):
    r"""A layer's input as a sum of the n residual streams, and the maps for what follows the layer.

    $$ (p, q, r) = \alpha \cdot \mathrm{RmsNorm}(x)\, \varphi^T + b, \quad
       H^{pre} = \sigma(p) + \mathrm{hc\_eps}, \quad H^{post} = 2 \sigma(q), \quad H^{res} = r, \quad
       h^{in} = \sum_i H^{pre}_i x_i $$

    Args:
        x: the streams, (B, S, n, D) or (T, n, D); float16 or bfloat16. The norm is over n and D.
        phi: the weights of p, q and r one after the other, (n^2 + 2n, nD), or (2n, nD) without r;
            float32.
        alpha: the factors of p, q and r, (3,), or (2,) without r; float32.
        bias: b, (n^2 + 2n,) or (2n,) float32.
        gamma: the factor of the norm, (n, D) float32; None for 1.
        norm_eps: is added to the mean square.
        hc_eps: is added to H^pre.
        out_flag: 1 returns what the gradient needs, too.
        inner_precise: 1 rounds the factors of the product to HF32, as the cube unit does.

    Returns:
        h_in (B, S, D) of the dtype of `x`; h_post (B, S, n), h_res (B, S, n, n), a single 0 without
        r, and with `out_flag` (otherwise empty) the reciprocal of the root mean square (B, S), the
        product before it is divided (B, S, n^2 + 2n) and H^pre (B, S, n), all float32. (T instead
        of B, S where `x` has 3 dimensions.)

    Constraints:
        n 4, 6 or 8; D divisible by 16, for gradients by 64 and at most 16384.

    Differs from upstream: upstream has it on Ascend950 only, here every chip computes it. The page
    gives h_post the shape (B, S, D), upstream's code (B, S, n).
    """
    streams, n = wide(x), x.shape[-2]
    flat = streams.flatten(-2)
    inv_rms = torch.rsqrt(flat.square().mean(-1) + norm_eps)
    scaled = flat if gamma is None else flat * wide(gamma).flatten()
    weight = wide(phi)
    if inner_precise:
        scaled, weight = hf32(scaled), hf32(weight)
    mix = scaled @ weight.t()
    maps = mix * inv_rms[..., None] * repeated(wide(alpha), n) + wide(bias)
    pre = torch.sigmoid(maps[..., :n]) + hc_eps
    post = 2 * torch.sigmoid(maps[..., n : 2 * n])
    res = maps.new_zeros(1)
    if alpha.numel() == 3:
        res = maps[..., 2 * n :].unflatten(-1, (n, n)).contiguous()
    layer = (pre[..., None] * streams).sum(-2).to(x.dtype)
    if not out_flag:
        return layer, post, res, mix.new_empty(0), mix.new_empty(0), mix.new_empty(0)
    return layer, post, res, inv_rms, mix, pre


@npu_mhc_pre.check
def _(x, phi, alpha, bias, gamma, out_flag, inner_precise):
    n, width, rows = check_streams(x, alpha)
    must.dtype("phi", phi, torch.float32)
    must.shape("phi", phi, (rows, n * width))
    must.dtype("bias", bias, torch.float32)
    must.shape("bias", bias, (rows,))
    must.dtype("gamma", gamma, torch.float32)
    must.shape("gamma", gamma, (n, width))
    must.choice("out_flag", out_flag, (0, 1))
    must.choice("inner_precise", inner_precise, (0, 1))


@npu_mhc_pre.backward
def _(dlayer, dpost, dres, *, x, phi, alpha, gamma, hc_eps, result1, result3, result4, result5):
    saved = (result3, result4, result5, result1)
    dx, dphi, dalpha, dbias, dgamma = npu_mhc_pre_backward(
        x, phi, alpha, dlayer, dpost, dres, *saved, gamma, hc_eps
    )
    gradients = {"x": dx, "phi": dphi, "alpha": dalpha, "bias": dbias}
    return gradients if gamma is None else {**gradients, "gamma": dgamma}


npu_mhc_pre.samples = [
    Sample(
        lambda make: (
            make(2, 3, 4, 64, dtype=torch.bfloat16),
            make(24, 256),
            make(3),
            make(24),
        ),
        lambda make: {"gamma": make(4, 64), "out_flag": 1},
    ),
    Sample(
        lambda make: (make(3, 6, 16, dtype=torch.float16), make(12, 96), make(2), make(12)),
        {"hc_eps": 1e-3, "norm_eps": 1e-3, "inner_precise": 1},
    ),
]


@npu_op(
    "npu_mhc_pre_backward(Tensor x, Tensor phi, Tensor alpha, Tensor grad_h_in,"
    " Tensor grad_h_post, Tensor grad_h_res, Tensor inv_rms, Tensor h_mix, Tensor h_pre,"
    " Tensor h_post, Tensor? gamma=None, float hc_eps=1e-6, Tensor? grad_x_post=None)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    product=True,
)
def npu_mhc_pre_backward(
    x,
    phi,
    alpha,
    grad_h_in,
    grad_h_post,
    grad_h_res,
    inv_rms,
    h_mix,
    h_pre,
    h_post,
    gamma,
    hc_eps,
    grad_x_post,
):
    r"""Gradients of `npu_mhc_pre`, from what it returns with `out_flag=1`.

    Args:
        x: as in the forward.
        phi: as in the forward, (n^2 + 2n, nD).
        alpha: as in the forward, (3,).
        grad_h_in: the gradient of the first result, of the dtype of `x`.
        grad_h_post: the gradient of the second result; float32.
        grad_h_res: the gradient of the third result; float32.
        inv_rms: the fourth result.
        h_mix: the fifth result.
        h_pre: the sixth result.
        h_post: the second result.
        gamma: as in the forward.
        hc_eps: as in the forward.
        grad_x_post: a gradient of `x` that is added, that of `npu_mhc_post`; of the dtype of `x`.

    Returns:
        The gradients of x, phi, alpha, bias and gamma, with their shapes; the first of the dtype of
        `x`, the others float32. That of an absent gamma is zero.
    """
    streams, n = wide(x), x.shape[-2]
    flat = streams.flatten(-2)
    dlayer = wide(grad_h_in)[..., None, :]
    gate = wide(h_pre) - hc_eps
    dpre = (dlayer * streams).sum(-1) * gate * (1 - gate)
    dpost = wide(grad_h_post) * wide(h_post) * (1 - wide(h_post) / 2)
    dmaps = torch.cat((dpre, dpost, wide(grad_h_res).flatten(-2)), -1)
    rms, mix, weight = wide(inv_rms)[..., None], wide(h_mix), wide(phi)
    dscaled = dmaps * repeated(wide(alpha), n)
    dmix = dscaled * rms
    by_row = (dmaps * mix * rms).flatten(0, -2).sum(0)
    dalpha = torch.stack([part.sum() for part in by_row.split((n, n, n * n))])
    through = dmix @ weight
    factor = None if gamma is None else wide(gamma).flatten()
    scaled = flat if factor is None else flat * factor
    dphi = dmix.flatten(0, -2).t() @ scaled.flatten(0, -2)
    drms = (dscaled * mix).sum(-1, keepdim=True)
    dx = (through if factor is None else through * factor) - drms * rms**3 / flat.shape[-1] * flat
    dx = dx.view(x.shape) + wide(h_pre)[..., None] * dlayer
    dgamma = (flat * through).flatten(0, -2).sum(0).view(x.shape[-2:])
    if grad_x_post is not None:
        dx = dx + wide(grad_x_post)
    if gamma is None:
        dgamma = torch.zeros_like(dgamma)
    return dx.to(x.dtype), dphi, dalpha, dmaps.flatten(0, -2).sum(0), dgamma


@npu_mhc_pre_backward.check
def _(
    x,
    phi,
    alpha,
    grad_h_in,
    grad_h_post,
    grad_h_res,
    inv_rms,
    h_mix,
    h_pre,
    h_post,
    gamma,
    grad_x_post,
):
    n, width, rows = check_streams(x, alpha)
    fits = width % 64 == 0 and width <= 16384
    must.hold(fits, "x", "of a last size divisible by 64, at most 16384", tuple(x.shape))
    must.shape("alpha", alpha, (3,))
    tokens = tuple(x.shape[:-2])
    must.same_dtype("grad_h_in", grad_h_in, "x", x)
    must.shape("grad_h_in", grad_h_in, (*tokens, width))
    for name, tensor, shape in (
        ("phi", phi, (rows, n * width)),
        ("grad_h_post", grad_h_post, (*tokens, n)),
        ("grad_h_res", grad_h_res, (*tokens, n, n)),
        ("inv_rms", inv_rms, tokens),
        ("h_mix", h_mix, (*tokens, rows)),
        ("h_pre", h_pre, (*tokens, n)),
        ("h_post", h_post, (*tokens, n)),
        ("gamma", gamma, (n, width)),
    ):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, shape)
    must.same_dtype("grad_x_post", grad_x_post, "x", x)
    must.shape("grad_x_post", grad_x_post, tuple(x.shape))


npu_mhc_pre_backward.samples = [
    Sample(
        lambda make: (
            make(3, 4, 64, dtype=torch.bfloat16),
            make(24, 256),
            make(3),
            make(3, 64, dtype=torch.bfloat16),
            make(3, 4),
            make(3, 4, 4),
            make(3, low=0.5),
            make(3, 24),
            make(3, 4, low=0.1),
            make(3, 4, low=0.1),
        ),
        lambda make: {"gamma": make(4, 64), "grad_x_post": make(3, 4, 64).bfloat16()},
    ),
]
