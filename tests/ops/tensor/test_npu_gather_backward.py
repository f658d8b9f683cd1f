"""npu_gather_backward against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradient(dim, dtype, kind):
    size = [3, 4]
    dy = make(2, 3, dtype=dtype)
    index = make(2, 3, dtype=kind, low=0, high=size[dim])
    want = torch.zeros(size, dtype=torch.float64)
    for a in range(2):
        for b in range(3):
            at = (index[a, b].item(), b) if dim == 0 else (a, index[a, b].item())
            want[at] += dy[a, b].cpu().double()
    got = torch_npu.npu_gather_backward(dy, size, dim, index, False)
    assert got.dtype == dtype and list(got.shape) == size
    assert_accurate(got, want, want.to(dtype))


def test_scalar():
    index = torch.zeros(3, dtype=torch.int64).to(make(1).device)
    got = torch_npu.npu_gather_backward(make(3), [], 0, index, False)
    assert got.shape == () and abs(got.item() - make(3).sum().item()) < 1e-6


def test_refusals():
    index = make(2, 3, dtype=torch.int64, low=0, high=3)
    with pytest.raises(NotImplementedError, match="'sparse_grad' must be False .*received True"):
        torch_npu.npu_gather_backward(make(2, 3), [3, 4], 1, index, True)
    with pytest.raises(RuntimeError, match=r"'grad' must be of shape \(2, 3\).*\(2, 2\)"):
        torch_npu.npu_gather_backward(make(2, 2), [3, 4], 1, index, False)
    with pytest.raises(RuntimeError, match=r"'dim' must be in \[-2, 1\]"):
        torch_npu.npu_gather_backward(make(2, 3), [3, 4], 2, index, False)
