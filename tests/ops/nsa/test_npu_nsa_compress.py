"""npu_nsa_compress and its gradient against fp64 loops."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.nsa import reference
from tests.ops.support import assert_accurate, gradcheck, make

CASES = [(32, 16, [5, 5, 49, 115]), (16, 16, [40]), (48, 32, [0, 100])]


@pytest.mark.parametrize(("size", "stride", "ends"), CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_windows(size, stride, ends, dtype):
    x, w = make(ends[-1], 3, 32, dtype=dtype), make(size, 3, dtype=dtype)
    y = torch_npu.npu_nsa_compress(x, w, size, stride, actual_seq_len=ends)
    want = reference.compress(x.cpu().double(), w.cpu().double(), size, stride, ends)
    plain = reference.compress(x.cpu(), w.cpu(), size, stride, ends)
    assert y.dtype == dtype
    assert_accurate(y, want, plain)


def test_sequences_shorter_than_a_window_have_none():
    x, w = make(20, 1, 16, dtype=torch.float16), make(32, 1, dtype=torch.float16)
    assert torch_npu.npu_nsa_compress(x, w, 32, 16, actual_seq_len=[8, 20]).shape == (0, 1, 16)


def test_strided_input_gives_the_same():
    x = make(50, 3, 64, dtype=torch.float16)[..., ::2]
    w = make(3, 32, dtype=torch.float16).t()
    y = torch_npu.npu_nsa_compress(x, w, 32, 16, actual_seq_len=[50])
    same = torch_npu.npu_nsa_compress(x.contiguous(), w.contiguous(), 32, 16, actual_seq_len=[50])
    assert torch.equal(y, same)


@pytest.mark.parametrize(("size", "stride", "ends"), CASES)
def test_gradient_operator(size, stride, ends):
    x, w = make(ends[-1], 2, 16, dtype=torch.float16), make(size, 2, dtype=torch.float16)
    xs, ws = (t.cpu().double().requires_grad_() for t in (x, w))
    y = reference.compress(xs, ws, size, stride, ends)
    dy = make(*y.shape, dtype=torch.float16)
    dx, dw = torch.autograd.grad(y, (xs, ws), dy.cpu().double())
    got = torch_npu.npu_nsa_compress_grad(dy, x, w, size, stride, actual_seq_len=ends)
    assert_accurate(got[0], dx, dx.half())
    assert_accurate(got[1], dw, dw.half())


def test_gradcheck():
    x = make(50, 2, 4, dtype=torch.float64, requires_grad=True)
    w = make(32, 2, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda a, b: torch_npu.npu_nsa_compress(a, b, 32, 16, actual_seq_len=[0, 50]), x, w)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_block_size": 24}, "'compress_block_size' must be a multiple of 16 up to 128.*24"),
        ({"compress_stride": 48}, "'compress_stride' must be a multiple of 16 up to 32.*48"),
        ({"actual_seq_len": None}, "'actual_seq_len' must be given"),
        ({"actual_seq_len": [30]}, r"'actual_seq_len' must be ending at the rows of 'input' \(50\).*30"),
        ({"actual_seq_len": [60, 50]}, "'actual_seq_len' must be not empty and ascending"),
        ({"weight": make(16, 2, dtype=torch.float16)}, r"'weight' must be of shape \(32, 2\)"),
        ({"input": make(50, 2, 24, dtype=torch.float16)}, "'input' must be of a head size that is a multiple of 16 up to 256"),
        ({"input": make(50, 2, 16)}, "'input' must be of dtype torch.float16 or torch.bfloat16"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "input": make(50, 2, 16, dtype=torch.float16),
        "weight": make(32, 2, dtype=torch.float16),
        "compress_block_size": 32,
        "compress_stride": 16,
        "actual_seq_len": [50],
    }
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_nsa_compress(**{**given, **changes})


def test_gradient_refuses_another_number_of_windows():
    x, w = make(50, 2, 16, dtype=torch.float16), make(32, 2, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"'grad' must be of shape \(2, 2, 16\)"):
        torch_npu.npu_nsa_compress_grad(
            make(3, 2, 16, dtype=torch.float16), x, w, 32, 16, actual_seq_len=[50]
        )


def test_chips():
    x, w = make(50, 2, 16, dtype=torch.float16), make(32, 2, dtype=torch.float16)
    with on("A3"):
        assert torch_npu.npu_nsa_compress(x, w, 32, 16, actual_seq_len=[50]).shape == (2, 2, 16)
    with on("A5"), pytest.raises(NotImplementedError, match="family A2 or of the family A3"):
        torch_npu.npu_nsa_compress(x, w, 32, 16, actual_seq_len=[50])
