"""npu_mhc_pre and its backward against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make, max_error


def inputs(tokens, n, width, dtype=torch.bfloat16, maps=3, gamma=True):
    rows = 2 * n + (n * n if maps == 3 else 0)
    return {
        "x": make(*tokens, n, width, dtype=dtype, seed=1),
        "phi": make(rows, n * width, seed=2) / width,
        "alpha": make(maps, low=0.5, high=2, seed=3),
        "bias": make(rows, seed=4),
        "gamma": make(n, width, low=0.5, high=1.5, seed=5) if gamma else None,
    }


def formula(x, phi, alpha, bias, gamma, norm_eps=1e-6, hc_eps=1e-6):
    n = x.shape[-2]
    v = x.reshape(*x.shape[:-2], -1)
    inv = 1 / (v.pow(2).sum(-1) / v.shape[-1] + norm_eps).sqrt()
    mix = torch.einsum("...k,rk->...r", v if gamma is None else v * gamma.reshape(-1), phi)
    m = mix * inv.unsqueeze(-1)
    pre = 1 / (1 + torch.exp(-(alpha[0] * m[..., :n] + bias[:n]))) + hc_eps
    post = 2 / (1 + torch.exp(-(alpha[1] * m[..., n : 2 * n] + bias[n : 2 * n])))
    res = None
    if len(alpha) == 3:
        res = (alpha[2] * m[..., 2 * n :] + bias[2 * n :]).reshape(*m.shape[:-1], n, n)
    return torch.einsum("...n,...nd->...d", pre, x), post, res, inv, mix, pre


def double(given):
    return {k: None if v is None else v.detach().cpu().double() for k, v in given.items()}


@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens,n,width", [((5,), 4, 16), ((2, 3), 6, 32), ((1, 1), 8, 16)])
def test_forward(tokens, n, width, dtype, gamma):
    given = inputs(tokens, n, width, dtype, gamma=gamma)
    got = torch_npu.npu_mhc_pre(**given, out_flag=1)
    want = formula(**double(given))
    assert got[0].dtype == dtype and all(t.dtype == torch.float32 for t in got[1:])
    assert_accurate(got[0], want[0], want[0].to(dtype))
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        assert max_error(mine, theirs) < 3e-6
    short = torch_npu.npu_mhc_pre(**given)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(short[:3], got[:3], strict=True))
    assert [t.numel() for t in short[3:]] == [0, 0, 0]


def test_epsilons():
    given = inputs((3,), 4, 16)
    options = {"norm_eps": 0.5, "hc_eps": 0.25}
    got = torch_npu.npu_mhc_pre(**given, **options, out_flag=1)
    want = formula(**double(given), **options)
    for index in (3, 4, 5):
        assert max_error(got[index], want[index]) < 2e-6


def test_without_the_residual_map():
    given = inputs((3,), 4, 16, maps=2)
    got = torch_npu.npu_mhc_pre(**given, out_flag=1)
    want = formula(**double(given))
    assert got[2].tolist() == [0.0] and got[4].shape == (3, 8)
    assert max_error(got[1], want[1]) < 2e-6 and max_error(got[5], want[5]) < 2e-6


def test_hf32_keeps_10_bits_of_the_factors():
    """As upstream's own test of inner_precise=1 rounds: to nearest, ties away from zero."""
    given = inputs((4,), 4, 64, gamma=False)
    given["phi"][0, :4] = torch.tensor([1.0, -1.0, 2.0, -2.0]).npu() * (1 + 2.0**-11)  # ties
    rounded = double(given)
    mantissa, exponent = torch.frexp(rounded["phi"])
    away = (mantissa.abs() * 2**11 + 0.5).floor() * mantissa.sign()
    rounded["phi"] = torch.ldexp(away / 2**11, exponent)
    got = torch_npu.npu_mhc_pre(**given, out_flag=1, inner_precise=1)[4]
    assert max_error(got, formula(**rounded)[4]) < 1e-6
    assert max_error(got, formula(**double(given))[4]) > 1e-5


@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("post", [True, False])
def test_backward_operator(gamma, post):
    given = inputs((2, 3), 4, 64, gamma=gamma)
    result = torch_npu.npu_mhc_pre(**given, out_flag=1)
    grads = [make(*r.shape, dtype=r.dtype, seed=20 + i) for i, r in enumerate(result[:3])]
    more = make(2, 3, 4, 64, dtype=torch.bfloat16, seed=30) if post else None
    got = torch_npu.npu_mhc_pre_backward(
        *(given[k] for k in ("x", "phi", "alpha")),
        *grads,
        *result[3:],
        result[1],
        gamma=given["gamma"],
        grad_x_post=more,
    )
    leaves = {k: v if v is None else v.requires_grad_() for k, v in double(given).items()}
    torch.autograd.backward(formula(**leaves)[:3], [g.cpu().double() for g in grads])
    if post:
        leaves["x"].grad += more.cpu().double()
    for mine, (name, leaf) in zip(got, leaves.items(), strict=True):
        if leaf is None:
            assert mine.shape == (4, 64) and not mine.cpu().any()
        elif name == "x":
            assert mine.dtype == torch.bfloat16
            assert_accurate(mine, leaf.grad, leaf.grad.bfloat16(), slack=1e-5)
        else:
            assert mine.dtype == torch.float32
            assert max_error(mine, leaf.grad) < 2e-5


@pytest.mark.parametrize("gamma", [True, False])
def test_gradients(gamma):
    given = inputs((2,), 4, 2, gamma=gamma)
    leaves = [v.to("npu", torch.float64).requires_grad_() for v in given.values() if v is not None]

    def run(x, phi, alpha, bias, factor=None):
        return torch_npu.npu_mhc_pre(x, phi, alpha, bias, gamma=factor, out_flag=1)[:3]

    gradcheck(run, *leaves)


def test_the_saved_results_are_not_differentiable():
    given = inputs((2,), 4, 16)
    given["phi"].requires_grad_()
    result = torch_npu.npu_mhc_pre(**given, out_flag=1)
    assert [r.requires_grad for r in result] == [True, True, True, False, False, False]


def test_gradients_of_whole_blocks():
    given = inputs((2,), 4, 16)
    given["phi"].requires_grad_()
    result = torch_npu.npu_mhc_pre(**given, out_flag=1)
    with pytest.raises(RuntimeError, match="'x' must be of a last size divisible by 64"):
        result[1].sum().backward()


def test_gradients_need_out_flag():
    given = inputs((2,), 4, 64)
    given["phi"].requires_grad_()
    with pytest.raises(RuntimeError, match="npu_mhc_pre_backward: argument 'inv_rms' must be"):
        sum(r.float().sum() for r in torch_npu.npu_mhc_pre(**given)[:3]).backward()


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"x": (3, 5, 16)}, r"'x' must be of 4, 6 or 8 streams.*\(3, 5, 16\)"),
        ({"x": (3, 4, 24)}, "'x' must be of a last size divisible by 16"),
        ({"alpha": (4,)}, r"'alpha' must be of 2 or 3 numbers.*\(4,\)"),
        ({"phi": (8, 64)}, r"'phi' must be of shape \(24, 64\).*\(8, 64\)"),
        ({"bias": (8,)}, r"'bias' must be of shape \(24\)"),
        ({"out_flag": 2}, "'out_flag' must be 0 or 1, but received 2"),
        ({"inner_precise": 2}, "'inner_precise' must be 0 or 1, but received 2"),
    ],
)
def test_refusals(changes, message):
    given = inputs((3,), 4, 16)
    for name, value in changes.items():
        dtype = torch.bfloat16 if name == "x" else torch.float32
        given[name] = make(*value, dtype=dtype) if isinstance(value, tuple) else value
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_mhc_pre(**given)
