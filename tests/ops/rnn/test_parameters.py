"""torch.nn.LSTMCell and LSTM on the device with fp32 parameters and a half-precision input."""

import copy

import pytest
import torch

import torch_npu  # noqa: F401  (the device)
from tests.ops.support import assert_accurate


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_are_rounded_to_the_input(dtype, bias):
    torch.manual_seed(2)
    plain = torch.nn.LSTMCell(6, 4, bias=bias)
    cell = copy.deepcopy(plain).npu()
    x, h, c = (torch.randn(3, n).to(dtype) for n in (6, 4, 4))
    leaves = [t.npu().requires_grad_() for t in (x, h, c)]
    found = cell(leaves[0], (leaves[1], leaves[2]))
    rounded = copy.deepcopy(plain).to(dtype).double()
    want = rounded(x.double(), (h.double(), c.double()))
    slack = 2e-3 if dtype == torch.float16 else 2e-2
    for got, exact in zip(found, want, strict=True):
        assert got.dtype == dtype
        assert_accurate(got, exact, exact.to(dtype), slack)
    found[0].sum().backward()
    assert all(leaf.grad.dtype == dtype for leaf in leaves)
    assert cell.weight_ih.grad.dtype == torch.float32


def test_one_dtype_is_pytorchs_own():
    torch.manual_seed(2)
    plain = torch.nn.LSTMCell(6, 4)
    cell = copy.deepcopy(plain).npu()
    x = torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(cell(x.npu())[0].cpu(), plain(x)[0])


def test_integers_are_still_refused():
    cell = torch.nn.LSTMCell(6, 4).npu()
    with pytest.raises(RuntimeError):
        cell(torch.ones(3, 6, dtype=torch.int32, device="npu"))


@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_takes_them_too(packed):
    """Through torch's function; torch.nn.LSTM itself refuses before it calls."""
    torch.manual_seed(2)
    plain = torch.nn.LSTM(6, 4, num_layers=2).eval()
    layer = copy.deepcopy(plain).npu()
    x, h = torch.randn(5, 3, 6).half(), torch.zeros(2, 3, 4).half()
    states = (h.npu(), h.npu())
    if packed:
        given = torch.nn.utils.rnn.pack_padded_sequence(x.npu(), [5, 3, 2])
        found = torch._VF.lstm(
            *(given.data, given.batch_sizes, states, list(layer._flat_weights)),
            *(True, 2, 0.0, False, False),
        )
        exact = torch.nn.utils.rnn.pack_padded_sequence(x.double(), [5, 3, 2])
        want = copy.deepcopy(plain).half().double()(exact)[0].data
    else:
        weights = list(layer._flat_weights)
        found = torch._VF.lstm(x.npu(), states, weights, True, 2, 0.0, False, False, False)
        want = copy.deepcopy(plain).half().double()(x.double())[0]
    assert found[0].dtype == torch.float16
    assert_accurate(found[0], want, want.half(), 2e-3)
