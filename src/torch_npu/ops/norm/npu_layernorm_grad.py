"""npu_layernorm_grad: the gradients of layer normalization."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_layernorm_grad(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor mean,"
    " Tensor rstd, Tensor? weight, Tensor? bias) -> (Tensor, Tensor, Tensor)",
    ge="LayerNormGrad",
    aclop=True,
)
def npu_layernorm_grad(grad_out, input, normalized_shape, mean, rstd, weight):
    r"""Gradients of `torch.layer_norm` from its saved statistics.

    $$ n = (x - \bar x) r, \quad g = \gamma\, dy, \quad
       dx = r \left(g - \bar g - n\, \overline{g n}\right), \quad
       d\gamma = \sum dy\, n, \quad d\beta = \sum dy $$

    Args:
        grad_out: dy, with the shape and dtype of `input`.
        input: x; float16, bfloat16 or float32.
        normalized_shape: the trailing shape of `input` that is normalized.
        mean: the mean, one number for each normalized part; any shape.
        rstd: r, the reciprocal standard deviation, as `mean`.
        weight: gamma, of `normalized_shape`; None for 1.
        bias: beta; its value is not needed.

    Returns:
        dx, dgamma and dbeta; the last two of the dtype of `weight` (of `input` without one).
    """
    count = len(normalized_shape)
    dims = tuple(range(-count, 0))
    outer = tuple(range(input.dim() - count))
    flat = (*input.shape[: input.dim() - count], *[1] * count)
    scale = wide(rstd).reshape(flat)
    normal = (wide(input) - wide(mean).reshape(flat)) * scale
    grad = wide(grad_out)
    inner = grad if weight is None else grad * wide(weight)
    dx = inner - inner.mean(dims, keepdim=True) - normal * (inner * normal).mean(dims, keepdim=True)
    dgamma, dbeta = grad * normal, grad
    if outer:
        dgamma, dbeta = dgamma.sum(outer), dbeta.sum(outer)
    kind = input.dtype if weight is None else weight.dtype
    return (dx * scale).to(input.dtype), dgamma.to(kind), dbeta.to(kind).clone()


@npu_layernorm_grad.check
def _(grad_out, input, normalized_shape, mean, rstd, weight, bias):
    must.dtype("input", input, torch.float16, torch.bfloat16, torch.float32)
    shape, kept = tuple(input.shape), input.dim() - len(normalized_shape)
    inside = kept >= 0 and len(normalized_shape) > 0
    must.hold(
        inside and list(shape[kept:]) == list(normalized_shape),
        "normalized_shape",
        f"the trailing sizes of 'input' {shape}",
        list(normalized_shape),
    )
    must.same_dtype("grad_out", grad_out, "input", input)
    must.shape("grad_out", grad_out, shape)
    for name, tensor in (("weight", weight), ("bias", bias)):
        must.shape(name, tensor, tuple(normalized_shape))
    rows = 1
    for size in shape[:kept]:
        rows = rows * size
    for name, tensor in (("mean", mean), ("rstd", rstd)):
        must.hold(tensor.numel() == rows, name, f"of {rows} numbers", tuple(tensor.shape))


npu_layernorm_grad.samples = [
    Sample(
        lambda make: (
            make(3, 4, 8),
            make(3, 4, 8),
            [8],
            make(3, 4, 1),
            make(3, 4, 1, low=0.5),
            make(8),
            make(8),
        )
    ),
    Sample(
        lambda make: (
            make(3, 4, 8, dtype=torch.float16),
            make(3, 4, 8, dtype=torch.float16),
            [4, 8],
            make(3),
            make(3, low=0.5),
            None,
            None,
        )
    ),
]
