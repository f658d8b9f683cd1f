"""npu_gemma_rms_norm against the formula in fp64."""

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


def reference(x, gamma, eps):
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rms = torch.sqrt((x * x).mean(dims, keepdim=True) + eps)
    return x / rms * (gamma + 1), 1 / rms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,norm", SHAPES)
def test_forward(shape, norm, dtype):
    x, gamma = make(*shape, dtype=dtype), make(*norm, dtype=dtype)
    y, rstd = torch_npu.npu_gemma_rms_norm(x, gamma, 1e-4)
    want, want_rstd = reference(x.cpu().double(), gamma.cpu().double(), 1e-4)
    plain, _ = reference(x.cpu(), gamma.cpu(), 1e-4)
    assert y.dtype == dtype and rstd.dtype == torch.float32
    assert_accurate(y, want, plain)
    assert_accurate(rstd, want_rstd, want_rstd.float())


def test_zero_gamma_is_the_identity_scale():
    x = make(4, 16, low=-3, high=3)
    y, rstd = torch_npu.npu_gemma_rms_norm(x, torch.zeros(16, device=x.device))
    assert torch.equal(y.cpu(), x.cpu() * rstd.cpu())


def test_non_contiguous():
    x = make(8, 6, 4).transpose(0, 2)
    y, _ = torch_npu.npu_gemma_rms_norm(x, make(8))
    want, _ = reference(x.cpu().double(), make(8).cpu().double(), 1e-6)
    assert_accurate(y, want, want.float())


def test_bad_dtype():
    with pytest.raises(
        RuntimeError, match="npu_gemma_rms_norm: argument 'self' must be of dtype .*int32"
    ):
        torch_npu.npu_gemma_rms_norm(make(2, 8, dtype=torch.int32, high=9), make(8))


@pytest.mark.family("A2")
def test_gamma_dtype():
    with pytest.raises(RuntimeError, match="argument 'gamma' must be of the dtype of 'self'"):
        torch_npu.npu_gemma_rms_norm(make(2, 8, dtype=torch.float16), make(8))


def test_gamma_shape():
    with pytest.raises(RuntimeError, match=r"argument 'gamma' must be of shape \(8\).*\(9,\)"):
        torch_npu.npu_gemma_rms_norm(make(2, 8), make(9))


def test_wider_gamma_on_ascend950():
    x, gamma = make(4, 16, dtype=torch.bfloat16), make(16)
    with on("A5"):
        got = torch_npu.npu_gemma_rms_norm(x, gamma)[0]
    want = reference(x.cpu().double(), gamma.cpu().double(), 1e-6)[0]
    assert got.dtype == torch.bfloat16
    assert_accurate(got, want, want.bfloat16())


def test_negative_epsilon():
    with pytest.raises(RuntimeError, match="argument 'epsilon' must be 0 or positive"):
        torch_npu.npu_gemma_rms_norm(make(4, 16), make(16), -1e-6)
