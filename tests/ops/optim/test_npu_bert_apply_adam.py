"""npu_bert_apply_adam against the formula in fp64: both modes, clipping, decay."""

import pytest
import torch

import torch_npu
from tests.ops.optim._reference import as_read, exact, targets
from tests.ops.support import assert_accurate, make

#: lr, beta1, beta2, epsilon
RATES = (0.1, 0.9, 0.99, 1e-4)


def reference(rates, g, most, norm, decay, step, mode, var, m, v):
    lr, b1, b2, eps = rates
    if mode == 0 and most > 0 and norm > most:
        g = g * most / norm
    m = m * b1 + (1 - b1) * g
    v = v * b2 + (1 - b2) * g**2
    update = m / (v.sqrt() + eps)
    if mode == 0:
        return var - lr * (update + decay * var), m, v
    return var - (lr if step is None else step) * update - lr * decay * var, m, v


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode,step", [(0, None), (0, 0.3), (1, None), (1, 0.3), (1, 0)])
@pytest.mark.parametrize("most,norm", [(1.0, 4.0), (4.0, 1.0), (-1.0, 0.0)])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_step(dtype, mode, step, most, norm, decay):
    grad, var, m, v = targets(5, 3, dtype=dtype)
    g, *state = exact(grad, var, m, v)
    out = torch_npu.npu_bert_apply_adam(
        *RATES, grad, most, norm, decay, step, mode, out=(var, m, v)
    )
    assert out[0] is var and out[1] is m and out[2] is v
    rates = as_read(dtype, *RATES)
    wants = reference(rates, g, *as_read(dtype, most, norm, decay, step), mode, *state)
    for got, want in zip(out, wants, strict=True):
        assert_accurate(got, want, want.to(dtype))


def test_defaults_are_mode_0():
    grad, *state = targets(4)
    given = [t.clone() for t in state]
    torch_npu.npu_bert_apply_adam(*RATES, grad, 1.0, 2.0, 0.1, out=state)
    torch_npu.npu_bert_apply_adam(
        *RATES, grad, 1.0, 2.0, 0.1, step_size=None, adam_mode=0, out=given
    )
    assert all(torch.equal(a, b) for a, b in zip(state, given, strict=True))


def test_bad_mode():
    grad, *state = targets(4)
    with pytest.raises(
        RuntimeError, match="npu_bert_apply_adam.*argument 'adam_mode' must be 0 or 1.*2"
    ):
        torch_npu.npu_bert_apply_adam(*RATES, grad, 1.0, 2.0, 0.1, None, 2, out=state)


def test_without_targets():
    with pytest.raises(RuntimeError, match="npu_bert_apply_adam: argument 'out' must be given"):
        torch_npu.npu_bert_apply_adam(*RATES, make(3), 1.0, 2.0, 0.1)


def test_bad_targets():
    grad, var, m, v = targets(4)
    with pytest.raises(RuntimeError, match="argument 'm' must be of the dtype of 'var'"):
        torch_npu.npu_bert_apply_adam(*RATES, grad, 1.0, 2.0, 0.1, out=(var, m.half(), v))
    with pytest.raises(RuntimeError, match="argument 'var' must be of dtype .*bfloat16"):
        halves = [t.bfloat16() for t in (var, m, v)]
        torch_npu.npu_bert_apply_adam(*RATES, grad.bfloat16(), 1.0, 2.0, 0.1, out=halves)
