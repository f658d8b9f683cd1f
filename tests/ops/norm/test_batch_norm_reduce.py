"""batch_norm_reduce against sums in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 3, 12, 12), (1, 1, 2, 2), (4, 6), (2, 5, 3), (0, 3, 2, 2)])
def test_sums(shape, dtype):
    x = make(*shape, dtype=dtype)
    total, squares = torch_npu.batch_norm_reduce(x, 1e-5)
    columns = x.cpu().double().transpose(0, 1).reshape(shape[1], -1)
    assert total.dtype == squares.dtype == torch.float32 and total.shape == (shape[1],)
    assert_accurate(total, columns.sum(1), columns.float().sum(1), slack=1e-5)
    assert_accurate(squares, (columns**2).sum(1), (columns**2).float().sum(1), slack=1e-5)


def test_non_contiguous():
    x = make(4, 5, 6, 3).permute(0, 3, 1, 2)
    want = x.cpu().double().sum((0, 2, 3))
    assert_accurate(torch_npu.batch_norm_reduce(x, 1e-5)[0], want, want.float(), slack=1e-5)


def test_eps_changes_nothing():
    x = make(2, 3, 4)
    for a, b in zip(torch_npu.batch_norm_reduce(x, 1e-5), torch_npu.batch_norm_reduce(x, 1.0)):
        assert torch.equal(a.cpu(), b.cpu())


def test_one_dimension():
    with pytest.raises(
        RuntimeError, match=r"'input' must be of at least 2 dimensions.*more than 1"
    ):
        torch_npu.batch_norm_reduce(make(3), 1e-5)


def test_dtype():
    with pytest.raises(RuntimeError, match="'input' must be of dtype .*int32"):
        torch_npu.batch_norm_reduce(make(3, 3, dtype=torch.int32, high=4), 1e-5)
