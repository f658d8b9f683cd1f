"""npu_min and its backward against a loop."""

import operator

import pytest
import torch

import torch_npu
from tests.ops.support import gradcheck, make
from tests.ops.tensor.extremes import CASES, DTYPES, reference


@pytest.mark.parametrize("shape,dim", CASES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_values_and_indices(shape, dim, keepdim):
    for dtype in DTYPES:
        x = make(*shape, dtype=dtype, low=-4 if dtype.is_signed else 0, high=4)
        values, indices = torch_npu.npu_min(x, dim, keepdim)
        want = reference(x.cpu(), dim, keepdim, operator.lt)
        assert values.dtype == dtype and indices.dtype == torch.int32
        assert torch.equal(values.cpu(), want[0]) and torch.equal(indices.cpu().long(), want[1])


def test_ties():
    x = torch.tensor([[1, 0, 0, 3], [2, 2, 2, 2]]).to(make(1).device)
    values, indices = torch_npu.npu_min(x, 1)
    assert values.tolist() == [0, 2] and indices.tolist() == [1, 0]


def test_non_contiguous():
    x = make(5, 6).t()
    values, indices = torch_npu.npu_min(x, 0)
    want = reference(x.cpu(), 0, False, operator.lt)
    assert torch.equal(values.cpu(), want[0]) and torch.equal(indices.cpu().long(), want[1])


@pytest.mark.parametrize("keepdim", [False, True])
def test_gradients(keepdim):
    x = make(2, 3, 2, dtype=torch.float64, requires_grad=True)
    for dim in (0, 1, -1):
        gradcheck(lambda t, dim=dim: torch_npu.npu_min(t, dim, keepdim)[0], x)


def test_named_backward():
    grad = make(2, 4)
    indices = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1]], dtype=torch.int32).to(grad.device)
    out = torch_npu.npu_min_backward(grad, 1, indices, [2, 3, 4], False).cpu()
    for i in range(2):
        for j in range(3):
            for k in range(4):
                assert out[i, j, k] == (grad[i, k].item() if indices[i, k] == j else 0)


def test_bad_dim():
    with pytest.raises(
        RuntimeError, match=r"npu_min.dim: argument 'dim' must be within \[-2, 1\], but received 2"
    ):
        torch_npu.npu_min(make(2, 3), 2)


def test_nothing_to_choose_from():
    with pytest.raises(
        RuntimeError, match=r"argument 'self' must be not empty along 'dim', but received \(2, 0\)"
    ):
        torch_npu.npu_min(make(2, 0), 1)


def test_bad_gradient():
    indices = torch.tensor([0, 3], dtype=torch.int32).to(make(1).device)
    with pytest.raises(
        RuntimeError, match=r"'indices' must be in \[0, 3\), but received 3 at index 1"
    ):
        torch_npu.npu_min_backward(make(2), 1, indices, [2, 3], False)
    with pytest.raises(RuntimeError, match=r"'grad' must be of shape \(2, 1\).*\(2,\)"):
        torch_npu.npu_min_backward(make(2), 1, indices, [2, 3], True)
