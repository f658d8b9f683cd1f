"""npu_geglu and npu_geglu_grad: the GELU-gated linear unit."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats

#: `approximate` -> PyTorch's name of the GELU
GELU = {0: "none", 1: "tanh"}


def _check_split(self, dim, approximate):
    must.dtype("self", self, *vector_floats())
    must.ndim("self", self, 1, 8)
    rank = self.dim()
    must.hold(-rank <= dim < rank, "dim", f"in [{-rank}, {rank - 1}]", dim)
    shape = tuple(self.shape)
    must.hold(shape[dim] % 2 == 0, "self", f"of even size in dimension {dim} (dim)", shape)
    must.choice("approximate", approximate, GELU)


def _halves(self, dim, activate_left):
    """The half that passes through the GELU, and the half that it gates."""
    left, right = wide(self).chunk(2, dim)
    return (left, right) if activate_left else (right, left)


@npu_op(
    "npu_geglu(Tensor self, int dim=-1, int approximate=1, bool activate_left=False)"
    " -> (Tensor, Tensor)",
    output_differentiability=(True, False),
    ge="GeGluV2",
)
def npu_geglu(self, dim, approximate, activate_left):
    r"""Splits x into halves A (left) and B (right) along `dim`; the GELU of one gates the other.

    $$ y = A \cdot \mathrm{gelu}(B), \quad \text{with activate\_left} \quad
       y = \mathrm{gelu}(A) \cdot B $$

    Args:
        self: x, 1 to 8 dimensions, even along `dim`; float16, float32, and bfloat16 but on Atlas
            training and inference series.
        dim: the dimension to halve, in [-self.dim(), self.dim() - 1].
        approximate: 0 for the GELU by the error function, 1 for its tanh approximation.
        activate_left: True applies the GELU to the left half, False to the right one.

    Returns:
        y and the GELU's values, both of the dtype of `self` and half its size along `dim`. Of float16, y is the
        product of the rounded GELU (on Ascend950 with `approximate` 1 alone), as the card's kernel has it.
    """
    activated, other = _halves(self, dim, activate_left)
    gelu = torch.nn.functional.gelu(activated, approximate=GELU[approximate])
    rounded = gelu.to(self.dtype).contiguous()
    if self.dtype == torch.float16 and (approximate == 1 or chips.current().family != "A5"):
        gelu = wide(rounded)
    return (gelu * other).to(self.dtype).contiguous(), rounded


@npu_geglu.check
def _(self, dim, approximate):
    _check_split(self, dim, approximate)


@npu_geglu.backward
def _(grad, *, self, dim, approximate, activate_left, result1):
    return {"self": npu_geglu_grad(grad, self, result1, dim, approximate, activate_left)}


npu_geglu.samples = [
    Sample(lambda make: (make(4, 3, 32),)),
    Sample(lambda make: (make(2, 6, 5, 3),), {"dim": 1, "approximate": 0}),
    Sample(lambda make: (make(4, 16, dtype=torch.bfloat16), -1), {"activate_left": True}),
]


@npu_op(
    "npu_geglu_grad(Tensor grad_output, Tensor self, Tensor gelu, int dim=-1, int approximate=1,"
    " bool activate_left=False) -> Tensor",
    ge="GeGluGradV2",
)
def npu_geglu_grad(grad_output, self, gelu, dim, approximate, activate_left):
    r"""Gradient of `npu_geglu`.

    $$ dA = dy \cdot \mathrm{gelu}(B), \quad dB = dy \cdot A \cdot \mathrm{gelu}'(B) $$

    and with A and B exchanged where `activate_left`.

    Args:
        grad_output: dy, half the size of `self` along `dim`; the dtype of `self`.
        self: x, the forward's input.
        gelu: the GELU's values, the forward's second result; the shape and dtype of `grad_output`.
        dim: as in the forward.
        approximate: as in the forward.
        activate_left: as in the forward.

    Returns:
        dx = (dA, dB) joined along `dim`, with the shape and dtype of `self`.
    """
    dy = wide(grad_output)
    activated, other = _halves(self, dim, activate_left)
    product = dy * other
    if self.dtype == torch.float16:  # ge_glu_grad_v2 multiplies in float16
        product = wide(product.half())
    through = torch.ops.aten.gelu_backward(product, activated, approximate=GELU[approximate])
    beside = dy * wide(gelu)
    pair = (through, beside) if activate_left else (beside, through)
    return torch.cat(pair, dim).to(self.dtype)


@npu_geglu_grad.check
def _(grad_output, self, gelu, dim, approximate):
    _check_split(self, dim, approximate)
    half = list(self.shape)
    half[dim] = half[dim] // 2
    for name, tensor in (("grad_output", grad_output), ("gelu", gelu)):
        must.same_dtype(name, tensor, "self", self)
        must.shape(name, tensor, half)


npu_geglu_grad.samples = [
    Sample(lambda make: (make(4, 3, 16), make(4, 3, 32), make(4, 3, 16))),
    Sample(lambda make: (make(2, 3, 5), make(2, 6, 5), make(2, 3, 5), 1, 0, True)),
]
