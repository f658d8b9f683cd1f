"""npu_apply_adam_w against the formula in fp64, and against torch.optim.AdamW."""

import pytest
import torch

import torch_npu
from tests.ops.optim._reference import as_read, exact, targets
from tests.ops.support import assert_accurate, make

#: the powers before the step, lr, weight decay, beta1, beta2, epsilon
RATES = (0.9**2, 0.99**2, 0.1, 0.05, 0.9, 0.99, 1e-4)


def reference(b1p, b2p, lr, decay, b1, b2, eps, g, largest, maximize, var, m, v):
    g = -g if maximize else g
    m = m * b1 + (1 - b1) * g
    v = v * b2 + (1 - b2) * g**2
    u = v if largest is None else torch.maximum(largest, v)
    step = (m / (1 - b1p * b1)) / ((u / (1 - b2p * b2)).sqrt() + eps)
    return var * (1 - lr * decay) - lr * step, m, v


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True, None])
def test_step(dtype, amsgrad, maximize):
    grad, var, m, v = targets(5, 3, dtype=dtype)
    largest = make(5, 3, dtype=dtype, low=0, seed=15) if amsgrad else None
    g, *state = exact(grad, var, m, v)
    kept = None if largest is None else exact(largest)[0]
    out = torch_npu.npu_apply_adam_w(*RATES, grad, largest, amsgrad, maximize, out=(var, m, v))
    assert out[0] is var
    wants = reference(*as_read(dtype, *RATES), g, kept, maximize, *state)
    for got, want in zip(out, wants, strict=True):
        assert_accurate(got, want, want.to(dtype))
    if largest is not None:
        assert torch.equal(largest.cpu().double(), kept), "max_grad_norm is read only"


def test_three_steps_of_torch():
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64))
    adam = torch.optim.AdamW([parameter], 0.1, (0.8, 0.9), eps=1e-3, weight_decay=0.2)
    var = parameter.detach().float().npu()
    m, v = torch.zeros_like(var), torch.zeros_like(var)
    for step in range(3):
        grad = make(9, seed=step)
        parameter.grad = grad.cpu().double()
        adam.step()
        rates = (0.8**step, 0.9**step, 0.1, 0.2, 0.8, 0.9, 1e-3)
        torch_npu.npu_apply_adam_w(*rates, grad, None, False, False, out=(var, m, v))
    # 1 - 0.9 of float32 is another number than 0.1
    assert_accurate(var, parameter, parameter.float(), 4e-6)


def test_a_rate_near_one_is_one_beside_bfloat16():
    """Upstream gives the operator its scalars in the dtype of var: v never changes."""
    grad, var, m, v = targets(8, dtype=torch.bfloat16)
    before = v.clone()
    rates = (0.9, 0.9, 0.1, 0.0, 0.9, 0.999, 1e-3)
    torch_npu.npu_apply_adam_w(*rates, grad * 9, None, False, False, out=(var, m, v))
    assert torch.equal(v, before)


def test_amsgrad_without_its_moment():
    grad, *state = targets(3)
    with pytest.raises(
        RuntimeError, match="npu_apply_adam_w.*argument 'max_grad_norm' must be given with amsgrad"
    ):
        torch_npu.npu_apply_adam_w(*RATES, grad, None, True, False, out=state)


def test_without_targets():
    with pytest.raises(RuntimeError, match="npu_apply_adam_w: argument 'out' must be given"):
        torch_npu.npu_apply_adam_w(*RATES, make(3), None, False, False)


def test_bad_shapes():
    grad, var, m, v = targets(3)
    with pytest.raises(RuntimeError, match=r"argument 'v' must be of shape \(3\).*\(1,\)"):
        torch_npu.npu_apply_adam_w(*RATES, grad, None, False, False, out=(var, m, v[:1]))
    with pytest.raises(RuntimeError, match=r"argument 'max_grad_norm' must be of shape \(3\)"):
        torch_npu.npu_apply_adam_w(*RATES, grad, make(4), False, False, out=(var, m, v))
