"""npu_rms_norm against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make


def reference(x, gamma, eps):
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rms = torch.sqrt((x * x).mean(dims, keepdim=True) + eps)
    return x / rms * gamma, 1 / rms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape,norm", [((4, 7, 96), (96,)), ((2, 3, 5, 8), (5, 8)), ((0, 16), (16,)), ((33,), (33,))]
)
def test_forward(dtype, shape, norm):
    x, gamma = make(*shape, dtype=dtype), make(*norm, dtype=dtype)
    y, rstd = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-5)
    want_y, want_rstd = reference(x.cpu().double(), gamma.cpu().double(), 1e-5)
    plain, _ = reference(x.cpu(), gamma.cpu(), 1e-5)
    assert y.dtype == dtype and rstd.dtype == torch.float32
    assert_accurate(y, want_y, plain)
    assert_accurate(rstd, want_rstd, want_rstd.float())


def test_mixed_gamma_dtype():
    x, gamma = make(4, 32, dtype=torch.bfloat16), make(32)
    y, _ = torch_npu.npu_rms_norm(x, gamma)
    want, _ = reference(x.cpu().double(), gamma.cpu().double(), 1e-6)
    assert y.dtype == torch.bfloat16
    assert_accurate(y, want, want.bfloat16())


def test_non_contiguous():
    x, gamma = make(8, 6, 4).transpose(0, 2), make(8)
    y, _ = torch_npu.npu_rms_norm(x, gamma)
    want, _ = reference(x.cpu().double(), gamma.cpu().double(), 1e-6)
    assert_accurate(y, want, want.float())


def test_gradients():
    x = make(3, 4, 8, dtype=torch.float64, requires_grad=True)
    gamma = make(4, 8, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda *a: torch_npu.npu_rms_norm(*a)[0], x, gamma)


def test_bad_dtype():
    with pytest.raises(
        RuntimeError, match="npu_rms_norm: argument 'self' must be of dtype .*int32"
    ):
        torch_npu.npu_rms_norm(make(2, 8, dtype=torch.int32, high=9), make(8))


def test_bad_gamma_shape():
    with pytest.raises(RuntimeError, match=r"argument 'gamma' must be of shape \(8\).*\(9,\)"):
        torch_npu.npu_rms_norm(make(2, 8), make(9))


def test_gamma_of_more_dimensions():
    with pytest.raises(
        RuntimeError, match="argument 'gamma' must be a tensor of 1 to 2 dimensions"
    ):
        torch_npu.npu_rms_norm(make(2, 8), make(1, 2, 8))


def test_gradient_of_another_dtype():
    x, gamma = make(4, 16, dtype=torch.float16), make(16)
    with pytest.raises(RuntimeError, match="argument 'dy' must be of the dtype of 'self'"):
        torch_npu.npu_rms_norm_backward(make(4, 16), x, gamma, make(4, 1))
