"""npu_dropout_with_add_softmax and its backward: add, softmax and dropout in one."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, kernel_generator, npu_op
from torch_npu.ops.dropout import _mask

SIZES = (128, 256, 384, 512)


def _check_options(prob, dim):
    must.be(0 <= prob < 1, "prob", "at least 0 and below 1", prob)
    must.be(dim == -1, "dim", "-1", dim)


def _kept(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return mask[: shape.numel()].view(shape).bool()


@npu_op(
    "npu_dropout_with_add_softmax(Tensor self, Tensor x1, Scalar alpha, float prob, int dim)"
    " -> (Tensor, Tensor, Tensor)"
)
class NpuDropoutWithAddSoftmax:
    r"""Softmax of a scaled sum, then dropout.

    $$ s = \mathrm{softmax}(x_1 + \alpha \cdot x), \qquad
       y_i = \frac{s_i \, m_i}{1 - \text{prob}}, \qquad P(m_i = 0) = \text{prob} $$

    Args:
        self: x, (N, C, H, W); float16, bfloat16 or float32.
        x1: the addend, of the shape and dtype of `self`.
        alpha: the factor of `self`.
        prob: the probability of dropping an element, at least 0 and below 1.
        dim: the dimension of the softmax, -1.

    Returns:
        the mask (uint8, 1-D, one byte an element, 1 where kept, padded to a multiple of 128), s
        and y, both with the shape and dtype of `self`. Only y passes gradients back.

    Constraints:
        H and W are 128, 256, 384 or 512; N * C is a multiple of 32.

    Differs from upstream: the mask comes from the device's generator (upstream draws it from a
    fixed seed).
    """

    saves = ("output:0", "output:1")

    def check(self, x1, alpha, prob, dim):
        must.dtype("self", self, torch.float16, torch.bfloat16, torch.float32)
        must.ndim("self", self, 4)
        must.be(
            all(size in SIZES for size in self.shape[2:]),
            "self",
            f"a tensor whose last two sizes are {must.one_of(SIZES)}",
            tuple(self.shape),
        )
        must.be(
            (self.shape[0] * self.shape[1]) % 32 == 0,
            "self",
            "a tensor whose first two sizes multiply to a multiple of 32",
            tuple(self.shape),
        )
        must.same_dtype("x1", x1, "self", self)
        must.shape("x1", x1, tuple(self.shape))
        must.be(not isinstance(alpha, complex), "alpha", "an int or a float", repr(alpha))
        _check_options(prob, dim)

    def kernel(self, x1, alpha, prob, dim):
        softmax = (wide(x1) + wide(self) * alpha).softmax(dim)
        keep = _mask.draw(_mask.aligned(self.numel()), prob, self.device, kernel_generator())
        dropped = _mask.drop(softmax, keep[: self.numel()].view(self.shape), prob)
        return keep.to(torch.uint8), softmax.to(x1.dtype), dropped.to(self.dtype)

    def backward(ctx, _grad_mask, _grad_softmax, grad):
        args = ctx.args
        dself, dx1 = torch.ops.npu.npu_dropout_with_add_softmax_backward(
            grad, ctx.outputs[0], ctx.outputs[1], args.alpha, args.prob, args.dim
        )
        return {"self": dself, "x1": dx1}

    samples = [
        Sample(lambda make: (make(4, 8, 128, 128), make(4, 8, 128, 128), 2, 0.9, -1)),
        Sample(
            lambda make: (
                make(32, 1, 128, 256, dtype=torch.float16),
                make(32, 1, 128, 256, dtype=torch.float16),
                0.125,
                0.0,
                -1,
            )
        ),
    ]


@npu_op(
    "npu_dropout_with_add_softmax_backward(Tensor grad, Tensor mask, Tensor softmax_out,"
    " Scalar alpha, float prob, int dim) -> (Tensor, Tensor)"
)
class NpuDropoutWithAddSoftmaxBackward:
    r"""Gradients of `npu_dropout_with_add_softmax` with respect to `self` and `x1`.

    $$ g_i = \frac{dy_i \, m_i}{1 - \text{prob}}, \qquad dx_1 = s \, (g - \sum g \cdot s), \qquad
       dx = \alpha \cdot dx_1 $$

    Args:
        grad: the gradient of the dropped-out result.
        mask: the byte mask of the forward operator.
        softmax_out: s, the second result of the forward operator.
        alpha, prob, dim: the arguments of the forward operator.

    Returns:
        the gradients of `self` and of `x1`, with the shape and dtype of `softmax_out`.

    Differs from upstream: there the second result is `grad` itself, which is not the gradient of
    `x1`.
    """

    def check(grad, mask, softmax_out, alpha, prob, dim):
        must.dtype("grad", grad, torch.float16, torch.bfloat16, torch.float32)
        must.shape("softmax_out", softmax_out, tuple(grad.shape))
        must.dtype("mask", mask, torch.uint8)
        must.shape("mask", mask, (_mask.aligned(grad.numel()),))
        _check_options(prob, dim)

    def kernel(grad, mask, softmax_out, alpha, prob, dim):
        s = wide(softmax_out)
        g = _mask.drop(wide(grad), _kept(mask, grad.shape), prob)
        dx1 = s * (g - (g * s).sum(dim, keepdim=True))
        return (dx1 * alpha).to(softmax_out.dtype), dx1.to(softmax_out.dtype)

    samples = [
        Sample(
            lambda make: (
                make(1, 2, 16, 16),
                make(512, dtype=torch.uint8, low=0, high=2),
                make(1, 2, 16, 16, low=0),
                0.5,
                0.25,
                -1,
            )
        ),
    ]
