"""npu_add_rms_norm against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make

SHAPES = [
    ((4, 7, 96), (96,)),
    ((2, 3, 5, 8), (5, 8)),
    ((0, 16), (16,)),
    ((33,), (33,)),
    ((3, 1), (1,)),
]


def reference(x1, x2, gamma, eps):
    x = x1 + x2
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rms = torch.sqrt((x * x).mean(dims, keepdim=True) + eps)
    return x / rms * gamma, 1 / rms, x


def inputs(shape, norm, dtype):
    return make(*shape, dtype=dtype), make(*shape, dtype=dtype, seed=7), make(*norm, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,norm", SHAPES)
def test_forward(shape, norm, dtype):
    tensors = inputs(shape, norm, dtype)
    got = torch_npu.npu_add_rms_norm(*tensors, 1e-4)
    wants = reference(*(t.cpu().double() for t in tensors), 1e-4)
    plains = reference(*(t.cpu() for t in tensors), 1e-4)
    assert [t.dtype for t in got] == [dtype, torch.float32, dtype]
    for have, want, plain in zip(got, wants, plains, strict=True):
        assert_accurate(have, want, plain)


def stepwise(x1, x2, gamma, exact_sum, stepwise):
    """The order of the card's kernel, one rounding at a time."""
    dtype = x1.dtype
    exact = x1.float() + x2.float()
    x = exact.to(dtype)
    used = exact if exact_sum else x.float()
    rstd = 1 / torch.sqrt(used.square().mean(-1, keepdim=True) + 1e-6)
    normed = used * rstd
    normed = normed.to(dtype).float() if stepwise else normed
    return (normed * gamma.float()).to(dtype), rstd, x


@pytest.mark.parametrize(
    "soc,dtype,exact_sum,rounded",
    [
        ("A2", torch.bfloat16, True, True),
        ("A2", torch.float16, False, True),
        ("A5", torch.bfloat16, True, False),
        ("A5", torch.float16, True, False),
    ],
)
def test_rounds_where_the_card_rounds(soc, dtype, exact_sum, rounded):
    x1, x2, gamma = inputs((64, 256), (256,), dtype)
    with on(soc):
        y, rstd, x = torch_npu.npu_add_rms_norm(x1, x2, gamma)
    host = (x1.cpu(), x2.cpu(), gamma.cpu())
    want, same, total = stepwise(*host, exact_sum, rounded)
    assert torch.equal(x.cpu(), total)
    torch.testing.assert_close(rstd.cpu(), same, rtol=1e-6, atol=0)
    assert (y.cpu() == want).float().mean() > 0.999  # rstd differs by the order of its sum
    other = stepwise(*host, not exact_sum, not rounded)[0]
    assert (y.cpu() == other).float().mean() < 0.9


def test_non_contiguous():
    x1, x2 = make(8, 6, 4).transpose(0, 2), make(8, 6, 4, seed=2).transpose(0, 2)
    y, _, _ = torch_npu.npu_add_rms_norm(x1, x2, make(8))
    want, _, _ = reference(x1.cpu().double(), x2.cpu().double(), make(8).cpu().double(), 1e-6)
    assert_accurate(y, want, want.float())


def test_infinity_and_nan():
    x1 = torch.tensor([[1.0, float("nan")], [1.0, 2.0]], device=make(1).device)
    y, _, _ = torch_npu.npu_add_rms_norm(x1, torch.zeros_like(x1), make(2, low=1, high=2))
    assert y[0].isnan().all() and y[1].isfinite().all()


def test_no_derivative():
    tensors = [t.requires_grad_() for t in inputs((4, 16), (16,), torch.float32)]
    out = torch_npu.npu_add_rms_norm(*tensors)[0]
    with pytest.raises(RuntimeError, match="npu_add_rms_norm' is not implemented"):
        out.sum().backward()


def test_shapes_differ():
    with pytest.raises(
        RuntimeError, match=r"npu_add_rms_norm: argument 'x2' must be of shape \(2, 8\).*\(1, 8\)"
    ):
        torch_npu.npu_add_rms_norm(make(2, 8), make(1, 8), make(8))


def test_gamma_dtype():
    half = make(2, 8, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="argument 'gamma' must be of the dtype of 'x1'"):
        torch_npu.npu_add_rms_norm(half, half, make(8))


def test_gamma_shape():
    with pytest.raises(RuntimeError, match=r"argument 'gamma' must be of shape \(8\).*\(9,\)"):
        torch_npu.npu_add_rms_norm(make(2, 8), make(2, 8), make(9))


def test_no_bfloat16_on_inference_series():
    with on("310P"), pytest.raises(RuntimeError, match="'x1' must be of dtype .*bfloat16"):
        torch_npu.npu_add_rms_norm(*inputs((2, 8), (8,), torch.bfloat16))
