"""The gradient operators of the recurrent layers against slopes of loops over time, in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.slopes import check_gradients
from tests.ops.support import make

T, B, I, H = 4, 3, 2, 3
LENGTHS = [4, 2, 1]
BATCHES = torch.tensor([3, 2, 1, 1])


def lstm(x, weight, bias, h, c, lengths=(T,) * B, reverse=False):
    """y of every step, one sequence after another; zero outside of it."""
    y = torch.zeros(T, B, H, dtype=torch.float64)
    for b in range(B):
        state, cell = h.reshape(B, H)[b], c.reshape(B, H)[b]
        steps = range(lengths[b])
        for t in reversed(steps) if reverse else steps:
            i, f, j, o = (torch.cat([x[t, b], state]) @ weight + bias).chunk(4)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(j)
            state = torch.sigmoid(o) * torch.tanh(cell)
            y[t, b] = state
    return y


def gru(w_x, w_h, x, b_x, b_h, h):
    y = torch.zeros(T, B, H, dtype=torch.float64)
    for b in range(B):
        state = h.reshape(B, H)[b]
        for t in range(T):
            own, past = (x[t, b] @ w_x + b_x).chunk(3), (state @ w_h + b_h).chunk(3)
            r, z = torch.sigmoid(own[0] + past[0]), torch.sigmoid(own[1] + past[1])
            state = (1 - z) * torch.tanh(own[2] + r * past[2]) + z * state
            y[t, b] = state
    return y


def layer():
    parts = (make(T, B, I), make(I + H, 4 * H, seed=1), make(4 * H, seed=2))
    return *parts, make(1, B, H, seed=3), make(1, B, H, seed=4)


def test_lstm():
    x, weight, bias, h, c = layer()
    rest = (True, 1, 0.0, True, False, False, False, False)
    results = torch_npu.npu_lstm(x, weight, bias, torch.empty(0).npu(), h, c, *rest)
    grad = make(T, B, H, seed=5)
    found = torch_npu.npu_lstm_backward(grad, None, None, x, weight, bias, h, c, *results)
    check_gradients(lstm, (x, weight, bias, h, c), grad, found)


@pytest.mark.parametrize("reverse", [False, True])
def test_lstm_data(reverse):
    x, weight, bias, h, c = layer()
    mask = (torch.arange(T)[:, None] < torch.tensor(LENGTHS)).unsqueeze(2).expand(T, B, H)
    rest = (True, 1, 0.0, True, False, False, True, reverse)
    given = (x, BATCHES, weight, bias, mask.float().npu(), h, c)
    results = torch_npu.npu_lstm_data(*given, *rest)
    want = lstm(*(t.cpu().double() for t in (x, weight, bias, h, c)), LENGTHS, reverse)
    torch.testing.assert_close(results[0].cpu().double(), want, atol=1e-6, rtol=1e-5)
    grad = make(T, B, H, seed=5)
    found = torch_npu.npu_lstm_data_backward(
        grad, None, None, x, BATCHES, weight, bias, h, c, *results, reverse
    )
    check_gradients(lambda *a: lstm(*a, LENGTHS, reverse), (x, weight, bias, h, c), grad, found)


def test_lstm_cell():
    x, w_x, w_h = make(B, I), make(I, 4 * H, seed=1), make(H, 4 * H, seed=2)
    h, c, b_x, b_h = (
        make(B, H, seed=3),
        make(B, H, seed=4),
        make(4 * H, seed=5),
        make(4 * H, seed=6),
    )
    results = torch_npu.npu_lstm_cell(x, w_x, w_h, h, c, b_x, b_h)
    grad = make(B, H, seed=7)

    def step(x, w_x, w_h, b_x, b_h, h, c):
        i, f, j, o = (x @ w_x + b_x + h @ w_h + b_h).chunk(4, 1)
        cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(j)
        return torch.sigmoid(o) * torch.tanh(cell)

    found = torch_npu.npu_lstm_cell_backward(None, grad, None, x, w_x, w_h, h, c, *results)
    check_gradients(step, (x, w_x, w_h, b_x, b_h, h, c), grad, found)


def test_gru():
    x, h = make(T, B, I), make(1, B, H, seed=1)
    w_x, w_h = make(I, 3 * H, seed=2), make(H, 3 * H, seed=3)
    b_x, b_h = make(3 * H, seed=4), make(3 * H, seed=5)
    none = torch.empty(0).npu()
    rest = (True, 1, 0.0, True, False, False)
    results = torch_npu.npu_gru(x, h, w_x, w_h, b_x, b_h, none, *rest)
    grad = make(T, B, H, seed=6)
    found = torch_npu.npu_gru_backward(grad, None, x, w_x, w_h, b_x, b_h, none, h, *results)
    check_gradients(gru, (w_x, w_h, x, b_x, b_h, h), grad, found)
