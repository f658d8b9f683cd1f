"""npu_lstm against torch.nn.LSTM on the CPU in fp64: directions, lengths, layouts, gradients."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

T, B, I, H = 6, 3, 4, 5
PLAIN = {
    "has_biases": True,
    "num_layers": 1,
    "dropout": 0.0,
    "train": True,
    "bidirectional": False,
    "batch_first": False,
    "flag_seq": False,
    "direction": False,
}


def layer(bias=True):
    """A bidirectional torch.nn.LSTM in fp64; its two directions are what the operator computes."""
    torch.manual_seed(3)
    return torch.nn.LSTM(I, H, bias=bias, bidirectional=True).double()


def parameters(lstm, reverse, dtype=torch.float32):
    """The matrix and the bias of one direction, in the operator's layout: the gate orders agree."""
    end = "_reverse" if reverse else ""
    matrices = [getattr(lstm, f"weight_{kind}_l0{end}") for kind in ("ih", "hh")]
    weight = torch.cat(matrices, 1).t()
    bias = torch.zeros(4 * H)
    if lstm.bias:
        bias = getattr(lstm, f"bias_ih_l0{end}") + getattr(lstm, f"bias_hh_l0{end}")
    return weight.detach().to(dtype).npu(), bias.detach().to(dtype).npu()


def states(dtype=torch.float32, **options):
    return make(1, B, H, dtype=dtype, seed=5, **options), make(
        1, B, H, dtype=dtype, seed=6, **options
    )


def run(x, weight, bias, h, c, seq_mask=None, **changes):
    seq_mask = torch.empty(0, device="npu") if seq_mask is None else seq_mask
    return torch_npu.npu_lstm(x, weight, bias, seq_mask, h, c, **{**PLAIN, **changes})


def expected(lstm, x, h, c, reverse, lengths=None):
    """y of one direction (zero after the end), and its final state."""
    x, h, c = (t.detach().cpu().double() for t in (x, h, c))
    both = (h.expand(2, -1, -1).contiguous(), c.expand(2, -1, -1).contiguous())
    if lengths is None:
        y, (hn, cn) = lstm(x, both)
    else:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, (hn, cn) = lstm(packed, both)
        y, _ = pad_packed_sequence(y, total_length=x.shape[0])
    side = int(reverse)
    return y[..., side * H : (side + 1) * H], hn[side], cn[side]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("bias", [True, False])
def test_forward(reverse, dtype, bias):
    lstm = layer(bias)
    x, (h, c) = make(T, B, I, dtype=dtype), states(dtype)
    weight, offsets = parameters(lstm, reverse, dtype)
    found = run(x, weight, offsets, h, c, direction=reverse, has_biases=bias)
    y, hn, cn = expected(lstm, x, h, c, reverse)
    last = 0 if reverse else T - 1
    slack = 2e-3 if dtype == torch.float16 else 2e-6
    assert all(t.shape == (T, B, H) and t.dtype == dtype for t in found)
    assert_accurate(found[0], y, y.to(dtype), slack)
    assert_accurate(found[1][last], hn, hn.to(dtype), slack)
    assert_accurate(found[2][last], cn, cn.to(dtype), slack)
    assert torch.equal(found[0], found[1])


def test_gates():
    """i, j, f, o and tanh(c) step by step from the definition."""
    lstm = layer()
    x, (h, c) = make(T, B, I), states()
    weight, bias = parameters(lstm, False)
    found = [t.cpu().double() for t in run(x, weight, bias, h, c)]
    h_now, c_now = h[0].cpu().double(), c[0].cpu().double()
    for t in range(T):
        joint = torch.cat([x[t].cpu().double(), h_now], 1)
        gates = (joint @ weight.cpu().double() + bias.cpu().double()).chunk(4, 1)
        i, f, o = (torch.sigmoid(gates[k]) for k in (0, 1, 3))
        j = torch.tanh(gates[2])
        c_now = f * c_now + i * j
        h_now = o * torch.tanh(c_now)
        for index, want in enumerate((h_now, h_now, c_now, i, j, f, o, torch.tanh(c_now))):
            torch.testing.assert_close(found[index][t], want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["lengths", "mask"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_variable_lengths(reverse, kind, batch_first):
    lstm, lengths = layer(), torch.tensor([4, T, 1])
    x, (h, c) = make(T, B, I), states()
    given = lengths.int().npu()
    if kind == "mask":
        alive = torch.arange(T)[:, None] < lengths[None, :]
        given = alive.half().unsqueeze(2).expand(T, B, H).contiguous().npu()
    weight, bias = parameters(lstm, reverse)
    if batch_first:
        x = x.transpose(0, 1)
        given = given.transpose(0, 1) if kind == "mask" else given
    found = run(
        x, weight, bias, h, c, given, direction=reverse, flag_seq=True, batch_first=batch_first
    )
    if batch_first:
        assert found[0].shape == (B, T, H) and found[0].is_contiguous()
        x, found = x.transpose(0, 1), [t.transpose(0, 1) for t in found]
    y, hn, cn = expected(lstm, x, h, c, reverse, lengths)
    last = 0 if reverse else T - 1
    for got, want in ((found[0], y), (found[1][last], hn), (found[2][last], cn)):
        assert_accurate(got, want, want.float(), 2e-6)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, [4, T, 0]])
@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients(reverse, lengths, batch_first):
    """Of y, h and c at every step, by finite differences."""
    size = (2, 3, 2) if batch_first else (3, 2, 2)
    mask = None if lengths is None else torch.tensor([2, 3], dtype=torch.int32, device="npu")
    options = {"dtype": torch.float64, "requires_grad": True}
    args = (
        make(*size, **options),
        make(5, 12, **options),
        make(12, **options),
        make(1, 2, 3, seed=5, **options),
        make(2, 3, seed=6, **options),
    )
    gradcheck(
        lambda *a: run(
            *a, mask, direction=reverse, flag_seq=mask is not None, batch_first=batch_first
        )[:3],
        *args,
        fast_mode=True,
    )


def test_gradients_are_those_of_torch():
    """Weights, input and states of a two-directional packed layer, built of two calls."""
    lstm, lengths = layer(), torch.tensor([T, 4, 2])
    x, (h, c) = make(T, B, I, requires_grad=True), states(requires_grad=True)
    packed = pack_padded_sequence(x.detach().cpu().double(), lengths)
    both = [t.detach().cpu().double().expand(2, -1, -1).contiguous() for t in (h, c)]
    y, _ = pad_packed_sequence(lstm(packed, both)[0])
    y.pow(2).sum().backward()
    for reverse in (False, True):
        weight, bias = (p.requires_grad_() for p in parameters(lstm, reverse))
        out = run(x, weight, bias, h, c, lengths.int().npu(), direction=reverse, flag_seq=True)[0]
        out.pow(2).sum().backward()
        end = "_reverse" if reverse else ""
        want = torch.cat([getattr(lstm, f"weight_{k}_l0{end}").grad for k in ("ih", "hh")], 1).t()
        assert_accurate(weight.grad, want, want.float(), 1e-5)
        want = getattr(lstm, f"bias_ih_l0{end}").grad
        assert_accurate(bias.grad, want, want.float(), 1e-5)


def test_without_biases_the_bias_is_not_looked_at():
    weight, bias = parameters(layer(), False)
    x, (h, c) = make(T, B, I), states()
    bias = bias.requires_grad_()
    y = run(x, weight, bias + 7, h, c, has_biases=False)[0]
    assert torch.equal(y, run(x, weight, torch.zeros_like(bias), h, c)[0])
    y.sum().backward()
    assert (bias.grad == 0).all()


def test_one_step_of_one_sequence():
    weight, bias = parameters(layer(), False)
    x, h = make(1, 1, I), make(1, 1, H)
    found = run(x, weight, bias, h, h)
    assert all(t.shape == (1, 1, H) for t in found)


def test_backward_operator_takes_missing_gradients():
    weight, bias = parameters(layer(), False)
    x, (h, c) = make(T, B, I), states()
    results = run(x, weight, bias, h, c)
    grad, zero = make(T, B, H), torch.zeros(T, B, H, device="npu")
    few = torch_npu.npu_lstm_backward(grad, None, None, x, weight, bias, h, c, *results)
    all_given = torch_npu.npu_lstm_backward(grad, zero, zero, x, weight, bias, h, c, *results)
    for one, other, like in zip(few, all_given, (x, weight, bias, h, c), strict=True):
        assert torch.equal(one, other) and one.shape == like.shape


@pytest.mark.parametrize(
    "changes,text",
    [
        ({"num_layers": 2}, "'num_layers' must be 1, but received 2"),
        ({"dropout": 0.5}, "'dropout' must be 0, but received 0.5"),
        ({"bidirectional": True}, "'bidirectional' must be False"),
    ],
)
def test_unsupported(changes, text):
    weight, bias = parameters(layer(), False)
    with pytest.raises(RuntimeError, match=f"npu_lstm: argument {text}"):
        run(make(T, B, I), weight, bias, *states(), **changes)


def test_bad_shapes():
    weight, bias = parameters(layer(), False)
    x, (h, c) = make(T, B, I), states()
    with pytest.raises(RuntimeError, match=r"'weight' must be of shape \(9, 20\).*\(8, 20\)"):
        run(x, weight[:8], bias, h, c)
    with pytest.raises(RuntimeError, match=r"'h' must be of shape \(1, 3, 5\)"):
        run(x, weight, bias, h[:, :2], c)
    with pytest.raises(RuntimeError, match="'input' must be of at least one step"):
        run(x[:0], weight, bias, h, c)
    with pytest.raises(RuntimeError, match="'input' must be of dtype .*bfloat16"):
        run(x.bfloat16(), weight, bias, h, c)


def test_bad_lengths():
    weight, bias = parameters(layer(), False)
    x, (h, c) = make(T, B, I), states()
    long = torch.tensor([1, 2, T + 1], dtype=torch.int32, device="npu")
    with pytest.raises(RuntimeError, match="'seq_mask' must be from 0 to 6.*1 to 7"):
        run(x, weight, bias, h, c, long, flag_seq=True)
    with pytest.raises(RuntimeError, match=r"'seq_mask' must be of shape \(6, 3, 5\)"):
        run(x, weight, bias, h, c, make(T, B), flag_seq=True)


def test_backward_operator_names_its_own_states():
    x, (h, c) = make(T, B, I), states()
    weight, bias = parameters(layer(), False)
    results = run(x, weight, bias, h, c)
    given = (None, None, None, x, weight, bias)
    with pytest.raises(RuntimeError, match=r"npu_lstm_backward: argument 'hx' must be of shape"):
        torch_npu.npu_lstm_backward(*given, h[:, :1], c, *results)
    with pytest.raises(RuntimeError, match=r"npu_lstm_backward: argument 'cx' must be of shape"):
        torch_npu.npu_lstm_backward(*given, h, c[..., :1], *results)
