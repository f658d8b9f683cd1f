"""npu_layer_norm_eval: layer normalization for inference."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import elementwise
from torch_npu.ops._shared._floats import vector_floats


@npu_op(
    "npu_layer_norm_eval(Tensor input, int[] normalized_shape, Tensor? weight=None,"
    " Tensor? bias=None, float eps=1e-05) -> Tensor",
    compiled="fuse",
    aclop=True,
)
def npu_layer_norm_eval(input, normalized_shape, weight, bias, eps):
    r"""Layer normalization over the trailing dimensions, as `torch.nn.functional.layer_norm`.

    $$ y = \frac{x - E[x]}{\sqrt{Var[x] + \epsilon}} \cdot \gamma + \beta $$

    with the variance of the population (divisor N).

    Args:
        input: x; float16, float32, and bfloat16 but on Atlas training and inference series.
        normalized_shape: the sizes of the trailing dimensions of `input` to normalize over.
        weight: gamma, of shape `normalized_shape`, in the dtype of `input` or float32; None: ones.
        bias: beta, of shape `normalized_shape`, in the dtype of `input` or float32; None: zeros.
        eps: added to the variance.

    Returns:
        y, with the shape and dtype of `input`. Upstream has no derivative for it.
    """
    gamma = None if weight is None else wide(weight)
    beta = None if bias is None else wide(bias)
    y = torch.nn.functional.layer_norm(wide(input), normalized_shape, gamma, beta, eps)
    return y.to(input.dtype)


@npu_layer_norm_eval.check
def _(input, normalized_shape, weight, bias):
    must.dtype("input", input, *vector_floats())
    shape, count = tuple(normalized_shape), len(normalized_shape)
    must.hold(
        1 <= count <= input.dim() and tuple(input.shape[input.dim() - count :]) == shape,
        "normalized_shape",
        f"the trailing sizes of 'input' {tuple(input.shape)}",
        shape,
    )
    for name, tensor in (("weight", weight), ("bias", bias)):
        must.dtype(name, tensor, input.dtype, torch.float32)
        must.shape(name, tensor, shape)


@npu_layer_norm_eval.native
def _(input, normalized_shape, weight, bias, eps):
    if not floats(input, weight, bias):
        return NotImplemented
    return torch.ops.softnpu.layer_norm(input, len(normalized_shape), weight, bias, eps)


@npu_layer_norm_eval.sharding
def _(input, normalized_shape):
    yield from elementwise(input.ndim - len(normalized_shape), "input")


npu_layer_norm_eval.samples = [
    Sample(lambda make: (make(6, 4), [4])),
    Sample(lambda make: (make(2, 3, 8), [3, 8], make(3, 8), make(3, 8), 1e-3)),
    Sample(lambda make: (make(5, 16, dtype=torch.float16), [16], make(16, dtype=torch.float16))),
]
