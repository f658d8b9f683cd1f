"""npu_apply_adam against the formula in fp64, and against torch.optim.Adam."""

import pytest
import torch

import torch_npu
from softnpu import chips
from tests.ops.families import as_chip
from tests.ops.optim._reference import as_read, exact, targets
from tests.ops.support import assert_accurate, make

RATES = (0.9**3, 0.99**3, 0.1, 0.9, 0.99, 1e-4)


def reference(b1p, b2p, lr, b1, b2, eps, g, nesterov, var, m, v):
    m = m * b1 + (1 - b1) * g
    v = v * b2 + (1 - b2) * g**2
    rate = lr * (1 - b2p) ** 0.5 / (1 - b1p)
    direction = m * b1 + (1 - b1) * g if nesterov else m
    return var - rate * direction / (v.sqrt() + eps), m, v


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("nesterov", [False, True, None])
@pytest.mark.parametrize("shape", [(3, 7), (1,), (0, 4)])
def test_step(dtype, nesterov, shape):
    grad, var, m, v = targets(*shape, dtype=dtype)
    g, *state = exact(grad, var, m, v)
    out = torch_npu.npu_apply_adam(*RATES, grad, False, nesterov, out=(var, m, v))
    assert out[0] is var and out[1] is m and out[2] is v
    kind = torch.float32 if chips.current().family == "A5" else dtype
    wants = reference(*as_read(kind, *RATES), g, nesterov, *state)
    for got, want in zip(out, wants, strict=True):
        assert_accurate(got, want, want.to(dtype))


def test_three_steps_of_torch():
    """torch.optim.Adam divides by the corrected root: with epsilon 0 the two agree."""
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64))
    adam = torch.optim.Adam([parameter], lr=0.1, betas=(0.8, 0.9), eps=0)
    var = parameter.detach().float().npu()
    m, v = torch.zeros_like(var), torch.zeros_like(var)
    for step in range(1, 4):
        grad = make(9, seed=step)
        parameter.grad = grad.cpu().double()
        adam.step()
        torch_npu.npu_apply_adam(
            0.8**step, 0.9**step, 0.1, 0.8, 0.9, 0.0, grad, None, None, out=(var, m, v)
        )
    # 1 - 0.9 of float32 is another number than 0.1
    assert_accurate(var, parameter, parameter.float(), 4e-6)


@pytest.mark.parametrize("soc,moved", [("Ascend910B3", False), ("Ascend950", True)])
def test_a_rate_near_one_is_one_beside_bfloat16(soc, moved):
    """On Atlas A2 and A3 upstream gives the operator its scalars in the dtype of var."""
    with as_chip(soc):
        grad, var, m, v = targets(8, dtype=torch.bfloat16)
        before = v.clone()
        torch_npu.npu_apply_adam(
            0.9, 0.9, 0.1, 0.9, 0.999, 1e-3, grad * 9, None, None, out=(var, m, v)
        )
        assert torch.equal(v, before) is not moved


def test_no_bfloat16_before_atlas_a2():
    grad, *state = targets(3, dtype=torch.bfloat16)
    with as_chip("Ascend910A"), pytest.raises(RuntimeError, match="'var' must be of"):
        torch_npu.npu_apply_adam(*RATES, grad, None, None, out=state)


def test_targets_by_name_and_non_contiguous():
    grad, var, m, v = targets(4, 6)
    plain = [t.clone() for t in (var, m, v)]
    torch_npu.npu_apply_adam(*RATES, grad, True, False, out=plain)
    turned = [t.t().contiguous().t() for t in (var, m, v)]
    torch.ops.npu.npu_apply_adam.out(
        *RATES, grad, True, False, var=turned[0], m=turned[1], v=turned[2]
    )
    for one, other in zip(plain, turned, strict=True):
        assert torch.equal(one, other)


@pytest.mark.family("A2")
def test_division_by_zero_is_not_an_error():
    grad, var, m, v = targets(3)
    torch_npu.npu_apply_adam(1, 1, 0.2, 0.2, 0.2, 0.2, grad, False, False, out=(var, m, v))
    assert not var.isfinite().any() and m.isfinite().all() and v.isfinite().all()


def test_the_version_counter_moves():
    grad, var, m, v = targets(3)
    before = var._version
    torch_npu.npu_apply_adam(*RATES, grad, False, False, out=(var, m, v))
    assert var._version > before


def test_without_targets():
    with pytest.raises(RuntimeError, match="npu_apply_adam: argument 'out' must be given"):
        torch_npu.npu_apply_adam(*RATES, make(3), False, False)


def test_bad_targets():
    grad, var, m, v = targets(3)
    with pytest.raises(RuntimeError, match=r"argument 'm' must be of shape \(3\).*\(4,\)"):
        torch_npu.npu_apply_adam(*RATES, grad, False, False, out=(var, make(4), v))
    with pytest.raises(RuntimeError, match="argument 'grad' must be of the dtype of 'var'"):
        torch_npu.npu_apply_adam(*RATES, grad.half(), False, False, out=(var, m, v))
    with pytest.raises(RuntimeError, match="argument 'var' must be of dtype .*float64"):
        torch_npu.npu_apply_adam(
            *RATES,
            grad.to("npu", torch.float64),
            False,
            False,
            out=tuple(t.to("npu", torch.float64) for t in (var, m, v)),
        )
