"""npu_gru against torch.nn.GRU on the CPU in fp64: both directions, lengths, layouts, gradients."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

T, B, I, H = 6, 3, 4, 5


def layer(bias=True):
    torch.manual_seed(3)
    return torch.nn.GRU(I, H, bias=bias, bidirectional=True).double()


def parameters(gru, reverse=False, dtype=torch.float32):
    """The two matrices and biases of one direction, transposed: the gate orders agree."""
    end = "_reverse" if reverse else ""
    found = [getattr(gru, f"weight_{kind}_l0{end}").t() for kind in ("ih", "hh")]
    if gru.bias:
        found += [getattr(gru, f"bias_{kind}_l0{end}") for kind in ("ih", "hh")]
    else:
        found += [torch.zeros(3 * H), torch.zeros(3 * H)]
    return [t.detach().to(dtype).contiguous().npu() for t in found]


def run(x, hx, w_x, w_h, b_x, b_h, lengths=None, **changes):
    lengths = torch.empty((), device="npu") if lengths is None else lengths
    options = {
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": True,
        "bidirectional": False,
        "batch_first": False,
    }
    return torch_npu.npu_gru(x, hx, w_x, w_h, b_x, b_h, lengths, **{**options, **changes})


def expected(gru, x, hx, lengths=None):
    """Both directions: y (T, B, 2H) and the final states."""
    x, hx = x.detach().cpu().double(), hx.detach().cpu().double()
    both = hx.expand(2, -1, -1).contiguous()
    if lengths is None:
        return gru(x, both)
    y, hn = gru(pack_padded_sequence(x, lengths, enforce_sorted=False), both)
    return pad_packed_sequence(y, total_length=x.shape[0])[0], hn


def test_layers_and_dropout_are_not_read():
    args = make(T, B, I), make(1, B, H), *parameters(layer(True), False, torch.float32)
    plain, other = run(*args), run(*args, num_layers=2, dropout=0.5)
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("bias", [True, False])
def test_both_directions(dtype, bias):
    """The other direction is a call over the flipped input, as upstream's torch.gru makes it."""
    gru = layer(bias)
    x, hx = make(T, B, I, dtype=dtype), make(1, B, H, dtype=dtype)
    want_y, want_h = expected(gru, x, hx)
    slack = 2e-3 if dtype == torch.float16 else 2e-6
    forward = run(x, hx, *parameters(gru, False, dtype), has_biases=bias, bidirectional=True)
    flipped = run(x.flip(0), hx, *parameters(gru, True, dtype), has_biases=bias, bidirectional=True)
    y = torch.cat([forward[0], flipped[0].flip(0)], -1)
    assert y.dtype == dtype
    assert_accurate(y, want_y, want_y.to(dtype), slack)
    h = torch.stack([forward[1][-1], flipped[1][-1]])
    assert_accurate(h, want_h, want_h.to(dtype), slack)


def test_gates():
    """z, r, n and the hidden part of n, step by step from the definition."""
    gru = layer()
    x, hx = make(T, B, I), make(1, B, H)
    w_x, w_h, b_x, b_h = (p.cpu().double() for p in parameters(gru))
    found = [t.cpu().double() for t in run(x, hx, *parameters(gru))]
    h = hx[0].cpu().double()
    for t in range(T):
        from_x = (x[t].cpu().double() @ w_x + b_x).chunk(3, 1)
        from_h = (h @ w_h + b_h).chunk(3, 1)
        r, z = torch.sigmoid(from_x[0] + from_h[0]), torch.sigmoid(from_x[1] + from_h[1])
        n = torch.tanh(from_x[2] + r * from_h[2])
        h = (1 - z) * n + z * h
        for index, want in enumerate((h, h, z, r, n, from_h[2])):
            torch.testing.assert_close(found[index][t], want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("batch_first", [False, True])
def test_variable_lengths(batch_first):
    gru, lengths = layer(), torch.tensor([4, T, 1])
    x, hx = make(T, B, I), make(1, B, H)
    y, hn = expected(gru, x, hx, lengths)
    given = x.transpose(0, 1) if batch_first else x
    found = run(given, hx, *parameters(gru), lengths.int().npu(), batch_first=batch_first)
    if batch_first:
        assert found[0].shape == (B, T, H)
        found = [t.transpose(0, 1) for t in found]
    assert_accurate(found[0], y[..., :H], y[..., :H].float(), 2e-6)
    assert_accurate(found[1][-1], hn[0], hn[0].float(), 2e-6)


@pytest.mark.parametrize("lengths", [None, [2, 3]])
@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients(lengths, batch_first):
    """Of y and h at every step, by finite differences."""
    options = {"dtype": torch.float64, "requires_grad": True}
    given = None if lengths is None else torch.tensor(lengths, dtype=torch.int32, device="npu")
    args = (
        make(*((2, 3, 2) if batch_first else (3, 2, 2)), **options),
        make(1, 2, 3, **options),
        make(2, 9, **options),
        make(3, 9, **options),
        make(9, **options),
        make(9, seed=4, **options),
    )
    gradcheck(lambda *a: run(*a, given, batch_first=batch_first)[:2], *args, fast_mode=True)


def test_gradients_are_those_of_torch():
    gru, lengths = layer(), torch.tensor([T, 4, 2])
    x, hx = make(T, B, I, requires_grad=True), make(1, B, H)
    host = x.detach().cpu().double().requires_grad_()
    packed = pack_padded_sequence(host, lengths)
    y, _ = pad_packed_sequence(gru(packed, hx.cpu().double().expand(2, -1, -1).contiguous())[0])
    y[..., :H].pow(2).sum().backward()
    weights = [p.requires_grad_() for p in parameters(gru)]
    run(x, hx, *weights, lengths.int().npu())[0].pow(2).sum().backward()
    wants = [gru.weight_ih_l0.grad.t(), gru.weight_hh_l0.grad.t()]
    wants += [gru.bias_ih_l0.grad, gru.bias_hh_l0.grad, host.grad]
    for got, want in zip((*weights, x), wants, strict=True):
        assert_accurate(got.grad, want, want.float(), 1e-5)


def test_mixed_precision():
    """A half-precision layer with fp32 biases and state gives fp32 results, as the page has it."""
    gru = layer()
    w_x, w_h, *_ = parameters(gru, dtype=torch.float16)
    _, _, b_x, b_h = parameters(gru)
    x, hx = make(T, B, I, dtype=torch.float16), make(B, H)
    found = run(x, hx, w_x, w_h, b_x, b_h)
    want = expected(gru, x, hx[None])[0][..., :H]
    assert all(t.dtype == torch.float32 for t in found)
    assert_accurate(found[0], want, want, 2e-3)


def test_backward_operator():
    gru = layer()
    x, hx, weights = make(T, B, I), make(1, B, H), parameters(gru)
    nothing = torch.empty((), device="npu")
    results = run(x, hx, *weights)
    grad = make(T, B, H, seed=9)
    found = torch_npu.npu_gru_backward(grad, None, x, *weights, nothing, hx, *results)
    leaves = [t.detach().requires_grad_() for t in (weights[0], weights[1], x, *weights[2:], hx)]
    y = run(leaves[2], leaves[5], leaves[0], leaves[1], leaves[3], leaves[4])[0]
    for got, want in zip(found, torch.autograd.grad(y, leaves, grad), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "changes,text",
    [],
)
def test_unsupported(changes, text):
    with pytest.raises(RuntimeError, match=f"npu_gru: argument {text}"):
        run(make(T, B, I), make(1, B, H), *parameters(layer()), **changes)


def test_bad_shapes():
    w_x, w_h, b_x, b_h = parameters(layer())
    x, hx = make(T, B, I), make(1, B, H)
    with pytest.raises(RuntimeError, match=r"'weight_input' must be of shape \(4, 15\)"):
        run(x, hx, w_x.t(), w_h, b_x, b_h)
    with pytest.raises(RuntimeError, match=r"'bias_hidden' must be of shape \(15\).*\(14,\)"):
        run(x, hx, w_x, w_h, b_x, b_h[:-1])
    with pytest.raises(RuntimeError, match=r"'hx' must be of shape \(1, 3, 5\)"):
        run(x, hx.expand(2, -1, -1), w_x, w_h, b_x, b_h)


def test_bad_lengths():
    args = (make(T, B, I), make(1, B, H), *parameters(layer()))
    with pytest.raises(RuntimeError, match="'seq_length' must be from 0 to 6.*-1 to 2"):
        run(*args, torch.tensor([1, 2, -1], dtype=torch.int32, device="npu"))
    with pytest.raises(RuntimeError, match="'seq_length' must be of dtype .*float32"):
        run(*args, make(B))
    with pytest.raises(RuntimeError, match=r"'seq_length' must be of shape \(3\).*\(2,\)"):
        run(*args, torch.tensor([1, 2], dtype=torch.int32, device="npu"))
