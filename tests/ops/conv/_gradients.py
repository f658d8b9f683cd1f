"""The tests that the operators of a convolution's gradients by `kernel_size` share."""

import pytest
import torch

from tests.ops.conv._reference import on_host
from tests.ops.support import assert_accurate


def check_gradients(operator, forward, inputs, rest, mask):
    """`operator` against the derivative of `forward`, in fp64; inputs are (gradient, input, weight)."""
    grad, x, weight = inputs
    found = operator(grad, x, weight, *rest, mask)
    given = (x, weight, torch.zeros(3))[: len(mask)]
    leaves = [t.requires_grad_() for t in on_host(given)]
    wants = torch.autograd.grad(forward(*leaves), leaves, grad.cpu().double())
    for got, want, asked in zip(found, wants, mask, strict=True):
        assert (got is not None) == asked
        if asked:
            assert got.dtype == x.dtype
            assert_accurate(got, want, want.to(x.dtype))


def check_refusals(call, name, inputs, rest, every):
    """A weight of another kernel, an input without a batch, a gradient of another batch."""
    grad, x, weight = inputs
    with pytest.raises(RuntimeError, match=f"{name}: argument 'weight' must"):
        call(grad, x, weight, [3, 3], *rest[1:], every)
    with pytest.raises(RuntimeError, match="argument 'self' must be a tensor of 4 dimensions"):
        call(grad, x[0], weight, *rest, every)
    with pytest.raises(RuntimeError, match=r"argument 'grad_output' must be of shape"):
        call(grad[:1], x, weight, *rest, every)
