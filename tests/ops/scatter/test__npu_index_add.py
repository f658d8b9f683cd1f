"""_npu_index_add and _npu_index_add_ against loops."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("alpha", [1, 0.5])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(7,), (2, 4)])
def test_against_loops(shape, dtype, kind, alpha):
    x = make(4, 3, dtype=dtype)
    index = make(*shape, dtype=kind, low=0, high=4)
    source = make(*shape, 3, dtype=dtype, seed=5)
    want = x.cpu().double()
    for row, values in zip(index.flatten().tolist(), source.cpu().double().reshape(-1, 3)):
        want[row] += alpha * values
    got = torch_npu._npu_index_add(x, index, source, alpha=alpha)
    assert got.dtype == dtype
    assert_accurate(got, want, want.to(dtype))
    again = torch_npu._npu_index_add_(x, index, source, alpha=alpha)
    assert again.data_ptr() == x.data_ptr() and torch.equal(x.cpu(), got.cpu())


def test_integers_are_exact():
    x = make(3, 2, dtype=torch.int32, low=0, high=9)
    index = torch.tensor([0, 0, 2]).to(x.device)
    got = torch_npu._npu_index_add(x, index, torch.full_like(x, 2**24 + 1), alpha=3)
    want = x.cpu() + torch.tensor([[2], [0], [1]], dtype=torch.int32) * 3 * (2**24 + 1)
    assert torch.equal(got.cpu(), want)


def test_refusals():
    index = make(2, dtype=torch.int64, low=0, high=3)
    with pytest.raises(RuntimeError, match=r"'source' must be of shape \(2, 4\).*\(2, 3\)"):
        torch_npu._npu_index_add(make(3, 4), index, make(2, 3))
    with pytest.raises(RuntimeError, match=r"'index' must be in \[0, 2\]"):
        torch_npu._npu_index_add(make(3, 4), index + 3, make(2, 4))
    with pytest.raises(RuntimeError, match="'index' must be of dtype .*float32"):
        torch_npu._npu_index_add(make(3, 4), make(2), make(2, 4))
