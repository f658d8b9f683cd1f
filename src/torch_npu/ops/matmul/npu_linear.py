"""npu_linear and npu_linear_backward: a product with a transposed weight, and a bias."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import int_product, product


def cube_floats() -> tuple[torch.dtype, ...]:
    """The floats that the cube unit multiplies: bfloat16 from the A2 series on."""
    older = chips.current().family in ("910A", "310P")
    return (torch.float16, torch.float32) + (() if older else (torch.bfloat16,))


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.is_floating_point():
        return product(a, b)
    return int_product(a, b) if a.dtype == torch.int8 else torch.matmul(a, b)


@npu_op(
    "npu_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    product=True,
    hf32="matmul",
)
def npu_linear(input, weight, bias):
    r"""The product of a matrix with a transposed weight, plus a bias.

    $$ y = \mathrm{input} \cdot \mathrm{weight}^T + \mathrm{bias} $$

    Args:
        input: (M, K); float32, float16, bfloat16 (not on the older series), int32 or int8.
        weight: (N, K), of the dtype of `input`.
        bias: (N,), or another shape that broadcasts to (M, N); float32, float16, bfloat16 or int32.

    Returns:
        y of shape (M, N) and the dtype of `input`. Integers that do not fit wrap.

    Differs from upstream:
        bfloat16 is taken where the chip has it; upstream's page does not list it, the card does it.
    """
    y = _multiply(input, weight.mT)
    return (y if bias is None else y + bias).to(input.dtype)


@npu_linear.check
def _(input, weight, bias):
    must.dtype("input", input, *cube_floats(), torch.int32, torch.int8)
    must.ndim("input", input, 2)
    must.same_dtype("weight", weight, "input", input)
    must.shape("weight", weight, (None, input.shape[1]))
    must.dtype("bias", bias, *cube_floats(), torch.int32)
    if bias is not None:
        whole = (input.shape[0], weight.shape[0])
        given = tuple(bias.shape)
        pairs = zip(given[::-1], whole[::-1], strict=False)
        fits = len(given) <= 2 and all(a in (1, b) for a, b in pairs)
        must.hold(fits, "bias", f"of a shape that broadcasts to {whole}", given, ErrCode.PARAM)
        kind = "a floating" if input.is_floating_point() else "an integer"
        fits = bias.is_floating_point() == input.is_floating_point()
        must.hold(fits, "bias", f"{kind} tensor like 'input'", bias.dtype)


@npu_linear.backward
def _(grad, *, input, weight, bias, needs):
    found = {}
    if needs["input"] or needs["weight"]:
        found["input"], found["weight"] = torch.ops.npu.npu_linear_backward(grad, input, weight)
    if needs.get("bias"):
        found["bias"] = grad.sum_to_size(bias.shape).to(bias.dtype)
    return found


npu_linear.samples = [
    Sample(lambda make: (make(4, 16), make(8, 16), make(8))),
    Sample(lambda make: (make(3, 5, dtype=torch.float16), make(7, 5, dtype=torch.float16))),
    Sample(
        lambda make: (
            make(4, 9, dtype=torch.int32, low=-9, high=9),
            make(3, 9, dtype=torch.int32, low=-9, high=9),
        ),
        lambda make: {"bias": make(3, dtype=torch.int32, low=-9, high=9)},
    ),
]


@npu_op(
    "npu_linear_backward(Tensor grad, Tensor input, Tensor weight) -> (Tensor, Tensor)",
    product=True,
)
def npu_linear_backward(grad, input, weight):
    r"""Gradients of `npu_linear` with respect to `input` and `weight`, in their dtypes.

    $$ d\mathrm{input} = \mathrm{grad} \cdot \mathrm{weight}, \quad
       d\mathrm{weight} = \mathrm{grad}^T \cdot \mathrm{input} $$

    Args:
        grad: (M, N), the gradient of the result.
        input: (M, K), as given to `npu_linear`.
        weight: (N, K), as given to `npu_linear`.

    Returns:
        The two gradients, of the shapes (M, K) and (N, K).
    """
    return product(grad, weight).to(input.dtype), product(grad.mT, input).to(weight.dtype)


@npu_linear_backward.check
def _(grad, input, weight):
    must.ndim("input", input, 2)
    must.shape("weight", weight, (None, input.shape[1]))
    must.shape("grad", grad, (input.shape[0], weight.shape[0]))
    must.same_dtype("weight", weight, "input", input)
    must.same_dtype("grad", grad, "input", input)


npu_linear_backward.samples = [Sample(lambda make: (make(4, 8), make(4, 16), make(8, 16)))]
