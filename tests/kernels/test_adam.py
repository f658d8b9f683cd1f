"""The native optimizer steps."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, views
from torch_npu.ops.optim.npu_apply_adam import npu_apply_adam_out
from torch_npu.ops.optim.npu_apply_adam_w import npu_apply_adam_w_out


def tensors(shape, dtype):
    x = randn(*shape, dtype=dtype)
    return {"var": x, "m": x.flip(0), "v": x.flip(-1).abs()}


def adam(grad, nesterov, state):
    args = (0.81, 0.998, 0.1, 0.9, 0.999, 1e-6, grad, False, nesterov)
    compare(npu_apply_adam_out, *args, **{k: t.clone() for k, t in state.items()})


def adam_w(grad, largest, maximize, state):
    args = (0.81, 0.998, 0.1, 0.01, 0.9, 0.999, 1e-6, grad, largest, largest is not None, maximize)
    compare(npu_apply_adam_w_out, *args, **{k: t.clone() for k, t in state.items()})


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps(dtype):
    for width in WIDTHS:
        state, grad = tensors((3, width), dtype), randn(3, width, dtype=dtype).neg()
        adam(grad, False, state)
        adam(grad, True, state)
        adam_w(grad, None, False, state)
        adam_w(grad, grad.abs(), True, state)


def test_strides():
    for grad in views(randn(4, 5, 9)):
        adam(grad, True, tensors((4, 5, 9), torch.float32))


def test_the_tensors_given_are_written():
    state = tensors((40,), torch.float32)
    grad = randn(40)
    out = npu_apply_adam_out.as_function("body")(
        0.9, 0.99, 0.1, 0.9, 0.99, 1e-6, grad, None, None, **state
    )
    assert all(a is b for a, b in zip(out, state.values(), strict=True))
    assert not torch.equal(state["var"], randn(40))
