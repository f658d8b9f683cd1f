"""npu_lstm_cell against torch.nn.LSTMCell on the CPU in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

B, I, H = 3, 5, 4


def inputs(dtype=torch.float32, bias=True, **options):
    options["dtype"] = dtype
    tensors = [make(B, I, **options), make(I, 4 * H, **options), make(H, 4 * H, **options)]
    tensors += [make(B, H, seed=5, **options), make(B, H, seed=6, **options)]
    if bias:
        tensors += [make(4 * H, seed=7, **options), make(4 * H, seed=8, **options)]
    return tensors


def expected(x, w_ih, w_hh, h, c, b_ih=None, b_hh=None):
    return torch.lstm_cell(x, (h, c), w_ih.t(), w_hh.t(), b_ih, b_hh)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("bias", [True, False])
def test_forward(dtype, bias):
    args = inputs(dtype, bias)
    y, h, c, i, j, f, o, tanhc = torch_npu.npu_lstm_cell(*args)
    want_h, want_c = expected(*(t.cpu().double() for t in args))
    slack = 2e-3 if dtype == torch.float16 else 2e-6
    assert_accurate(h, want_h, want_h.to(dtype), slack)
    assert_accurate(c, want_c, want_c.to(dtype), slack)
    assert torch.equal(y[0], h) and y.dtype == dtype
    assert all(t.shape == (1, B, H) for t in (i, j, f, o, tanhc))
    rebuilt = f[0].double() * args[4].double() + (i * j)[0].double()
    assert_accurate(rebuilt, want_c, want_c.to(dtype), slack)
    assert_accurate(o * tanhc, want_h[None], want_h[None].to(dtype), slack)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients(bias):
    args = inputs(torch.float64, bias, requires_grad=True)
    gradcheck(lambda *a: torch_npu.npu_lstm_cell(*a)[:3], *args, fast_mode=True)


def test_backward_operator_takes_missing_gradients():
    args = inputs()
    results = torch_npu.npu_lstm_cell(*args)
    grad = make(B, H, seed=9)
    found = torch_npu.npu_lstm_cell_backward(None, grad, None, *args[:5], *results)
    hosts = [t.cpu().double().requires_grad_() for t in args]
    h, _ = expected(*hosts)
    x, w_ih, w_hh, h0, c0, b_ih, b_hh = torch.autograd.grad(h, hosts, grad.cpu().double())
    for got, want in zip(found, (x, w_ih, w_hh, b_ih, b_hh, h0, c0), strict=True):
        assert_accurate(got, want, want.float(), 2e-6)


def test_half_a_bias():
    with pytest.raises(
        RuntimeError, match="npu_lstm_cell: argument 'b_hh' must be given together with 'b_ih'"
    ):
        torch_npu.npu_lstm_cell(*inputs(bias=False), make(4 * H))


def test_bad_shapes():
    x, w_ih, w_hh, h, c = inputs(bias=False)
    with pytest.raises(RuntimeError, match=r"'w_ih' must be of shape \(5, 16\)"):
        torch_npu.npu_lstm_cell(x, w_ih[:4], w_hh, h, c)
    with pytest.raises(RuntimeError, match=r"'c' must be of shape \(3, 4\)"):
        torch_npu.npu_lstm_cell(x, w_ih, w_hh, h, c[:2])


def test_bad_dtype():
    x, w_ih, w_hh, h, c = inputs(bias=False)
    with pytest.raises(RuntimeError, match="'w_hh' must be of the dtype of 'input'"):
        torch_npu.npu_lstm_cell(x, w_ih, w_hh.half(), h, c)
