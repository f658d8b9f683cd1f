"""npu_renorm_backward against PyTorch's gradient in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2.0, 3, float("inf")])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradient(p, dim, dtype):
    x, dy = make(4, 5, 3, dtype=dtype, low=-2, high=2), make(4, 5, 3, dtype=dtype, seed=8)
    norms = torch.linalg.vector_norm(x.cpu().double(), p, [d for d in range(3) if d != dim % 3])
    limit = float(norms.sort().values[:2].mean())
    leaf = x.cpu().double().requires_grad_()
    torch.renorm(leaf, p, dim, limit).backward(dy.cpu().double())
    got = torch_npu.npu_renorm_backward(dy, x, p, dim, limit)
    assert got.dtype == dtype
    assert_accurate(got, leaf.grad, leaf.grad.to(dtype), slack=2e-5)


def test_zeros_stay_finite():
    x, dy = torch.zeros(3, 4).to(make(1).device), make(3, 4)
    assert torch.equal(torch_npu.npu_renorm_backward(dy, x, 3, 0, 1.0).cpu(), dy.cpu())


def test_refusals():
    with pytest.raises(RuntimeError, match="'p' must be positive, but received 0"):
        torch_npu.npu_renorm_backward(make(3, 4), make(3, 4), 0, 0, 1)
    with pytest.raises(RuntimeError, match=r"'dim' must be in \[-2, 1\], but received 2"):
        torch_npu.npu_renorm_backward(make(3, 4), make(3, 4), 2, 2, 1)
    with pytest.raises(RuntimeError, match="'maxnorm' must be not negative"):
        torch_npu.npu_renorm_backward(make(3, 4), make(3, 4), 2, 0, -1)
