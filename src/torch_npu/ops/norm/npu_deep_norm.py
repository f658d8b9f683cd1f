"""npu_deep_norm and npu_deep_norm_backward: layer normalization of a scaled residual."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats


def _dims(gamma):
    return tuple(range(-gamma.dim(), 0))


def _check(x, gx, gamma):
    must.dtype("x", x, *vector_floats())
    must.ndim("x", x, 2, 8)
    must.same_dtype("gx", gx, "x", x)
    must.shape("gx", gx, tuple(x.shape))
    must.same_dtype("gamma", gamma, "x", x)
    must.ndim("gamma", gamma, 1, x.dim() - 1)
    must.shape("gamma", gamma, tuple(x.shape[x.dim() - gamma.dim() :]))


@npu_op(
    "npu_deep_norm(Tensor x, Tensor gx, Tensor beta, Tensor gamma, float alpha=0.3,"
    " float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
    output_differentiability=(False, False, True),
)
def npu_deep_norm(x, gx, beta, gamma, alpha, epsilon):
    r"""DeepNorm: the layer normalization of a residual that is scaled up against the layer's output.

    $$ z = \alpha x + g, \quad
       y = \gamma \frac{z - \bar z}{\sqrt{\overline{(z - \bar z)^2} + \varepsilon}} + \beta $$

    Args:
        x: the residual, 2 to 8 dimensions; float16, float32, and bfloat16 but on Atlas inference series.
        gx: g, the layer's output, with the shape and dtype of `x`.
        beta: as `gamma`.
        gamma: with the trailing shape of `x` that is normalized (not all of it), and its dtype.
        alpha: the factor of the residual.
        epsilon: is added to the variance.

    Returns:
        The mean and the reciprocal standard deviation, float32, of size 1 in the normalized
        dimensions, and y with the shape and dtype of `x`.
    """
    z, dims = wide(x) * alpha + wide(gx), _dims(gamma)
    mean = z.mean(dims, keepdim=True)
    rstd = torch.rsqrt((z - mean).square().mean(dims, keepdim=True) + epsilon)
    y = (z - mean) * rstd * wide(gamma) + wide(beta)
    return mean, rstd, y.to(x.dtype)


@npu_deep_norm.check
def _(x, gx, beta, gamma):
    _check(x, gx, gamma)
    must.same_dtype("beta", beta, "x", x)
    must.shape("beta", beta, tuple(gamma.shape))


@npu_deep_norm.backward
def _(grad, *, x, gx, beta, gamma, alpha, result0, result1):
    parts = npu_deep_norm_backward(grad, x, gx, gamma, result0, result1, alpha)
    dx, dgx, dbeta, dgamma = parts
    return {"x": dx, "gx": dgx, "beta": dbeta.to(beta.dtype), "gamma": dgamma.to(gamma.dtype)}


npu_deep_norm.samples = [
    Sample(lambda make: (make(3, 4, 16), make(3, 4, 16), make(16), make(16))),
    Sample(
        lambda make: (
            make(2, 3, 8, dtype=torch.bfloat16),
            make(2, 3, 8, dtype=torch.bfloat16),
            make(3, 8, dtype=torch.bfloat16),
            make(3, 8, dtype=torch.bfloat16),
        ),
        {"alpha": 0.5, "epsilon": 1e-3},
    ),
]


@npu_op(
    "npu_deep_norm_backward(Tensor dy, Tensor x, Tensor gx, Tensor gamma, Tensor mean,"
    " Tensor rstd, float alpha=0.3) -> (Tensor, Tensor, Tensor, Tensor)",
    ge="DeepNormGrad",
)
def npu_deep_norm_backward(dy, x, gx, gamma, mean, rstd, alpha):
    r"""Gradients of `npu_deep_norm`.

    Args:
        dy: the gradient of y, with the shape and dtype of `x`.
        x: as in the forward.
        gx: as in the forward.
        gamma: as in the forward.
        mean: the forward's first result.
        rstd: the forward's second result.
        alpha: as in the forward.

    Returns:
        The gradients of x and gx with their dtype, and those of beta and gamma in float32.
    """
    dims = _dims(gamma)
    z = wide(x) * alpha + wide(gx)
    normal = (z - mean) * rstd
    grad = wide(dy)
    inner = grad * wide(gamma)
    dz = inner - inner.mean(dims, keepdim=True) - normal * (inner * normal).mean(dims, keepdim=True)
    dz = dz * rstd
    outer = tuple(range(x.dim() - gamma.dim()))
    dbeta, dgamma = grad, grad * normal
    if outer:
        dbeta, dgamma = dbeta.sum(outer), dgamma.sum(outer)
    return (dz * alpha).to(x.dtype), dz.to(x.dtype), dbeta.contiguous(), dgamma


@npu_deep_norm_backward.check
def _(dy, x, gx, gamma, mean, rstd):
    _check(x, gx, gamma)
    must.same_dtype("dy", dy, "x", x)
    must.shape("dy", dy, tuple(x.shape))
    kept = x.dim() - gamma.dim()
    shape = (*x.shape[:kept], *[1] * gamma.dim())
    for name, tensor in (("mean", mean), ("rstd", rstd)):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, shape)


npu_deep_norm_backward.samples = [
    Sample(
        lambda make: (
            make(3, 4, 16),
            make(3, 4, 16),
            make(3, 4, 16),
            make(16),
            make(3, 4, 1),
            make(3, 4, 1, low=0.5),
        )
    ),
]
