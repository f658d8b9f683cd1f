"""npu_add_rms_norm_cast against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

SHAPES = [((4, 7, 96), (96,)), ((2, 3, 5, 8), (5, 8)), ((0, 16), (16,)), ((33,), (33,))]


def reference(x1, x2, gamma, eps):
    """As the card's kernel: float16 is added as it is and rounded before gamma, bfloat16 is neither."""
    total = (x1 + x2).double()
    x = total if x1.dtype == torch.float16 else x1.double() + x2.double()
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rms = torch.sqrt((x * x).mean(dims, keepdim=True) + eps)
    normed = x / rms
    if x1.dtype == torch.float16:
        normed = normed.half().double()
    return normed * gamma.double(), 1 / rms, total


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape,norm", SHAPES)
def test_forward(shape, norm, dtype):
    tensors = make(*shape, dtype=dtype), make(*shape, dtype=dtype, seed=7), make(*norm, dtype=dtype)
    wide, y, rstd, x = torch_npu.npu_add_rms_norm_cast(*tensors, epsilon=1e-4)
    want, want_rstd, want_x = reference(*(t.cpu() for t in tensors), 1e-4)
    assert (wide.dtype, y.dtype, rstd.dtype, x.dtype) == (
        torch.float32,
        dtype,
        torch.float32,
        dtype,
    )
    assert torch.equal(wide.cpu(), y.cpu().float())
    torch.testing.assert_close(y.cpu(), want.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    assert_accurate(rstd, want_rstd, want_rstd.float())
    assert torch.equal(x.cpu().double(), want_x)


def test_default_epsilon():
    x = make(2, 8, dtype=torch.float16) * 1e-3
    got = torch_npu.npu_add_rms_norm_cast(x, x, make(8, dtype=torch.float16))
    want = torch_npu.npu_add_rms_norm_cast(x, x, make(8, dtype=torch.float16), 1e-6)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_float32_input():
    with pytest.raises(
        RuntimeError, match="npu_add_rms_norm_cast: argument 'x1' must be of dtype .*float32"
    ):
        torch_npu.npu_add_rms_norm_cast(make(2, 8), make(2, 8), make(8))


def test_mixed_dtypes():
    half = make(2, 8, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="argument 'x2' must be of the dtype of 'x1'"):
        torch_npu.npu_add_rms_norm_cast(half, half.bfloat16(), make(8, dtype=torch.float16))


def test_gamma_shape():
    half = make(2, 8, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"argument 'gamma' must be of shape \(8\).*\(4,\)"):
        torch_npu.npu_add_rms_norm_cast(half, half, make(4, dtype=torch.float16))
