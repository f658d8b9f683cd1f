"""The recurrent operators against loops over single numbers in NumPy, gate by gate."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

T, B, I, H = 4, 2, 3, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numbers(*tensors):
    return [t.cpu().double().numpy() for t in tensors]


def lstm_step(x, h, c, weight, bias):
    """One step of one sample: gates i, f, g, o lie side by side in the columns of the weight."""
    gates = []
    for column in range(4 * H):
        total = bias[column]
        for k, value in enumerate([*x, *h]):
            total += value * weight[k, column]
        gates.append(total)
    i, f, g, o = (np.array(gates[k * H : (k + 1) * H]) for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(x, h, w_x, w_h, b_x, b_h):
    """One step of one sample: gates r, z, n; the reset gate scales the product with its bias."""
    new = np.zeros(H)
    for k in range(H):
        parts = []
        for gate in range(3):
            column = gate * H + k
            parts.append((x @ w_x[:, column] + b_x[column], h @ w_h[:, column] + b_h[column]))
        r, z = sigmoid(sum(parts[0])), sigmoid(sum(parts[1]))
        n = np.tanh(parts[2][0] + r * parts[2][1])
        new[k] = (1 - z) * n + z * h[k]
    return new


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("reverse", [False, True])
def test_lstm(dtype, reverse):
    x, weight = make(T, B, I, dtype=dtype), make(I + H, 4 * H, dtype=dtype, seed=1)
    bias, h, c = (
        make(4 * H, dtype=dtype, seed=2),
        *(make(1, B, H, dtype=dtype, seed=s) for s in (3, 4)),
    )
    rest = (True, 1, 0.0, False, False, False, False, reverse)
    lengths = torch.empty(0, device=x.device)
    y, last_h, last_c, *_ = torch_npu.npu_lstm(x, weight, bias, lengths, h, c, *rest)
    xs, w, b, h0, c0 = numbers(x, weight, bias, h, c)
    want_y, want_c = np.zeros((2, T, B, H))
    for sample in range(B):
        hidden, cell = h0[0, sample], c0[0, sample]
        for step in reversed(range(T)) if reverse else range(T):
            hidden, cell = lstm_step(xs[step, sample], hidden, cell, w, b)
            want_y[step, sample], want_c[step, sample] = hidden, cell
    slack = 4e-3 if dtype == torch.float16 else 2e-6
    for got, want in ((y, want_y), (last_h, want_y), (last_c, want_c)):
        want = torch.from_numpy(want)
        assert_accurate(got, want, want.to(dtype), slack)


def test_lstm_cell():
    x, w_ih, w_hh = make(B, I), make(I, 4 * H, seed=1), make(H, 4 * H, seed=2)
    h, c, bias = make(B, H, seed=3), make(B, H, seed=4), make(4 * H, seed=5)
    _, got_h, got_c, *_ = torch_npu.npu_lstm_cell(x, w_ih, w_hh, h, c, bias, torch.zeros_like(bias))
    xs, hs, cs, b = numbers(x, h, c, bias)
    weight = np.concatenate(numbers(w_ih, w_hh))
    want = [lstm_step(xs[k], hs[k], cs[k], weight, b) for k in range(B)]
    for got, place in ((got_h, 0), (got_c, 1)):
        expected = torch.from_numpy(np.stack([w[place] for w in want]))
        assert_accurate(got.view(B, H), expected, expected.float(), 2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_gru(dtype):
    x, h = make(T, B, I, dtype=dtype), make(1, B, H, dtype=dtype, seed=1)
    w_x, w_h = make(I, 3 * H, dtype=dtype, seed=2), make(H, 3 * H, dtype=dtype, seed=3)
    b_x, b_h = (make(3 * H, dtype=dtype, seed=s) for s in (4, 5))
    lengths = torch.empty((), device=x.device)
    y = torch_npu.npu_gru(x, h, w_x, w_h, b_x, b_h, lengths, True, 1, 0.0, False, False, False)[0]
    xs, h0, *parameters = numbers(x, h, w_x, w_h, b_x, b_h)
    want = np.zeros((T, B, H))
    for sample in range(B):
        hidden = h0[0, sample]
        for step in range(T):
            hidden = want[step, sample] = gru_step(xs[step, sample], hidden, *parameters)
    expected = torch.from_numpy(want)
    assert_accurate(y, expected, expected.to(dtype), 4e-3 if dtype == torch.float16 else 2e-6)
