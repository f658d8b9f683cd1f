"""npu_add_layer_norm and npu_add_layer_norm_backward: addition fused with layer normalization."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats


def _normalized_dims(x, gamma):
    return tuple(range(x.dim() - gamma.dim(), x.dim()))


def _check_inputs(x1, x2, gamma):
    must.dtype("x1", x1, *vector_floats())
    must.ndim("x1", x1, 1, 8)
    if x1.dtype == torch.float32:
        must.dtype("x2", x2, *vector_floats())
    else:
        must.dtype("x2", x2, x1.dtype, torch.float32)
    must.shape("x2", x2, tuple(x1.shape))
    mixed = x1.dtype != x2.dtype
    must.dtype("gamma", gamma, *(() if mixed else (x1.dtype,)), torch.float32)
    must.ndim("gamma", gamma, 1, x1.dim())
    must.shape("gamma", gamma, tuple(x1.shape[x1.dim() - gamma.dim() :]))


@npu_op(
    "npu_add_layer_norm(Tensor x1, Tensor x2, Tensor gamma, Tensor beta, float epsilon=1e-05,"
    " bool additional_output=False) -> (Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, False, False, True),
)
def npu_add_layer_norm(x1, x2, gamma, beta, epsilon, additional_output):
    r"""Adds x1 and x2 and layer-normalizes the sum over the trailing dimensions of `gamma`.

    $$ x = x_1 + x_2, \qquad y = \frac{x - E[x]}{\sqrt{Var[x] + \epsilon}} \cdot \gamma + \beta $$

    Args:
        x1: 1 to 8 dimensions; float16, bfloat16 or float32.
        x2: the shape of `x1`; its dtype, or one of the two is float32.
        gamma: of shape `x1.shape[n:]`; float32, or the dtype of `x1` where `x2` has it too.
        beta: the shape and dtype of `gamma`.
        epsilon: added to the variance.
        additional_output: whether the sum x is given.

    Returns:
        y of the shape of `x1`, in its dtype where `x2` has the same one and float32 otherwise;
        mean and rstd in float32, of shape `x1.shape[:n] + (1,)`; x with the shape and dtype of y.
        Without `additional_output` upstream leaves x uninitialized; here it is then zero.
    """
    out = x1.dtype if x1.dtype == x2.dtype else torch.float32
    dims = _normalized_dims(x1, gamma)
    x = wide(x1) + wide(x2)
    mean = x.mean(dims, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(dims, keepdim=True) + epsilon)
    y = (x - mean) * rstd * wide(gamma) + wide(beta)
    rows = (*x1.shape[: dims[0]], 1)
    total = x.to(out) if additional_output else torch.zeros_like(x, dtype=out)
    return y.to(out), mean.reshape(rows), rstd.reshape(rows), total


@npu_add_layer_norm.check
def _(x1, x2, gamma, beta):
    _check_inputs(x1, x2, gamma)
    must.same_dtype("beta", beta, "gamma", gamma)
    must.shape("beta", beta, tuple(gamma.shape))


@npu_add_layer_norm.backward
def _(dy, dx, *, x1, x2, gamma, beta, additional_output, result1, result2):
    dsum = dx if additional_output else None
    dx1, dx2, dgamma, dbeta = torch.ops.npu.npu_add_layer_norm_backward(
        dy, x1, x2, result2, result1, gamma, dsum
    )
    return {
        "x1": dx1,
        "x2": dx2.to(x2.dtype),
        "gamma": dgamma.to(gamma.dtype),
        "beta": dbeta.to(beta.dtype),
    }


npu_add_layer_norm.samples = [
    Sample(lambda make: (make(4, 3, 32), make(4, 3, 32, low=0), make(32), make(32))),
    Sample(
        lambda make: (make(2, 3, 8), make(2, 3, 8, low=0), make(3, 8), make(3, 8), 1e-3, True),
    ),
    Sample(
        lambda make: (make(4, 16, dtype=torch.float16), make(4, 16), make(16), make(16)),
        {"additional_output": True},
    ),
]


@npu_op(
    "npu_add_layer_norm_backward(Tensor? dy_opt, Tensor x1, Tensor x2, Tensor rstd, Tensor mean,"
    " Tensor gamma, Tensor? dsum_opt) -> (Tensor, Tensor, Tensor, Tensor)"
)
def npu_add_layer_norm_backward(dy_opt, x1, x2, rstd, mean, gamma, dsum_opt):
    """Gradients of `npu_add_layer_norm`.

    Args:
        dy_opt: the gradient of y, of the shape of `x1`; None for zeros.
        x1, x2, gamma: the forward's inputs.
        rstd, mean: the forward's results.
        dsum_opt: the gradient of the sum x, of the shape of `x1`; None for zeros.

    Returns:
        The gradients of x1 and of x2 (equal, in the dtype of `x1`), of gamma and of beta (float32).
    """
    dims = _normalized_dims(x1, gamma)
    batch = tuple(range(dims[0]))
    column = (*x1.shape[: dims[0]], *(1 for _ in dims))
    rstd, mean = rstd.reshape(column), mean.reshape(column)
    x = wide(x1) + wide(x2)
    dy = torch.zeros_like(x) if dy_opt is None else wide(dy_opt)
    normed = (x - mean) * rstd
    scaled = dy * wide(gamma)
    centered = scaled - scaled.mean(dims, keepdim=True)
    dx = rstd * (centered - normed * (scaled * normed).mean(dims, keepdim=True))
    if dsum_opt is not None:
        dx = dx + wide(dsum_opt)
    dgamma, dbeta = dy * normed, dy
    if batch:
        dgamma, dbeta = dgamma.sum(batch), dbeta.sum(batch)
    dx = dx.to(x1.dtype)
    return dx, dx.clone(), dgamma, dbeta.clone()


@npu_add_layer_norm_backward.check
def _(dy_opt, x1, x2, rstd, mean, gamma, dsum_opt):
    _check_inputs(x1, x2, gamma)
    for name, tensor in (("dy_opt", dy_opt), ("dsum_opt", dsum_opt)):
        must.dtype(name, tensor, x1.dtype, torch.float32)
        must.shape(name, tensor, tuple(x1.shape))
    for name, tensor in (("rstd", rstd), ("mean", mean)):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, (*x1.shape[: x1.dim() - gamma.dim()], 1))


npu_add_layer_norm_backward.samples = [
    Sample(
        lambda make: (
            make(4, 8),
            make(4, 8),
            make(4, 8, low=0),
            make(4, 1, low=1, high=2),
            make(4, 1),
            make(8),
            make(4, 8),
        )
    ),
    Sample(
        lambda make: (
            None,
            make(4, 8),
            make(4, 8, low=0),
            make(4, 1, low=1, high=2),
            make(4, 1),
            make(8),
            make(4, 8),
        )
    ),
]
