"""npu_gather_sparse_index and its gradient against loops."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


def reference(x, index):
    rows = [x.cpu()[i] for i in index.cpu().reshape(-1).tolist()]
    return torch.stack(rows).reshape(*index.shape, *x.shape[1:])


def indices(*shape, high, dtype=torch.int64):
    return make(*shape, dtype=dtype, low=0, high=high)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    x = make(7, 5, low=0, high=90).to("npu", dtype)
    index = indices(2, 3, high=7)
    out = torch_npu.npu_gather_sparse_index(x, index)
    assert out.dtype == dtype and torch.equal(out.cpu(), reference(x, index))


@pytest.mark.parametrize(
    "shape,places",
    [
        ((7,), (4,)),
        ((7, 2, 3), (2, 1, 2)),
        ((7,), (1, 2, 1, 2, 1, 2, 2)),
        ((7, 2), (0, 3)),
        ((1, 1), (1,)),
    ],
)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_shapes(shape, places, kind):
    x, index = make(*shape), indices(*places, high=shape[0], dtype=kind)
    out = torch_npu.npu_gather_sparse_index(x, index)
    assert out.shape == (*places, *shape[1:]) and out.is_contiguous()
    if index.numel():
        assert torch.equal(out.cpu(), reference(x, index))


def test_scalar_index_and_scalar_input():
    x = make(5, 3)
    out = torch_npu.npu_gather_sparse_index(x, indices(high=5))
    assert torch.equal(out.cpu(), reference(x, indices(1, high=1) * 0 + indices(high=5))[0])
    assert torch_npu.npu_gather_sparse_index(x[0, 0], indices(4, high=1)) == x[0, 0]


def test_non_contiguous():
    x, index = make(5, 7).t(), indices(3, 8, high=7)[:, ::2]
    assert torch.equal(torch_npu.npu_gather_sparse_index(x, index).cpu(), reference(x, index))


def test_gradients():
    x = make(5, 3, dtype=torch.float64, requires_grad=True)
    index = indices(2, 4, high=5)
    gradcheck(lambda x: torch_npu.npu_gather_sparse_index(x, index), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_named_gradient(dtype):
    grad, index = make(40, 3, dtype=dtype), indices(40, high=4)
    out = torch.ops.npu.npu_gather_sparse_index_backward(grad, [6, 3], index)
    want = torch.zeros(6, 3, dtype=torch.float64)
    for row, place in zip(grad.cpu().double(), index.tolist(), strict=True):
        want[place] += row
    assert out.dtype == dtype
    assert_accurate(out, want, want.to(dtype))


def test_half_gradient_through_autograd():
    x = make(5, 3, dtype=torch.float16, requires_grad=True)
    index = indices(2, 2, high=5)
    torch_npu.npu_gather_sparse_index(x, index).sum().backward()
    counts = torch.bincount(index.cpu().reshape(-1), minlength=5)
    assert x.grad.dtype == torch.float16
    assert torch.equal(x.grad.cpu(), counts.half().unsqueeze(1).expand(5, 3))


@pytest.mark.parametrize("bad", [5, -1])
def test_index_out_of_range(bad):
    index = indices(2, 2, high=5)
    index[1, 0] = bad
    message = rf"npu_gather_sparse_index: argument 'index' must be in \[0, 5\), but received {bad} at index \(1, 0\)"
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_gather_sparse_index(make(5, 3), index)


def test_too_many_dimensions():
    with pytest.raises(RuntimeError, match=r"input.dim\(\) \+ index.dim\(\) - 1 is at most 8"):
        torch_npu.npu_gather_sparse_index(make(2, 1, 1), indices(1, 1, 1, 1, 1, 1, 1, high=2))
    with pytest.raises(
        RuntimeError, match="argument 'index' must be a tensor of 0 to 7 dimensions"
    ):
        torch_npu.npu_gather_sparse_index(make(2), indices(1, 1, 1, 1, 1, 1, 1, 1, high=2))


def test_bad_dtypes():
    with pytest.raises(RuntimeError, match="argument 'index' must be of dtype .*float32"):
        torch_npu.npu_gather_sparse_index(make(5), make(2))
    with pytest.raises(RuntimeError, match="argument 'input' must be of dtype .*float8_e5m2"):
        torch_npu.npu_gather_sparse_index(make(5).to(torch.float8_e5m2), indices(2, high=5))


def test_gradient_of_another_shape():
    with pytest.raises(
        RuntimeError,
        match=r"npu_gather_sparse_index_backward: argument 'grad' must be of shape \(2, 3\)",
    ):
        torch.ops.npu.npu_gather_sparse_index_backward(make(2, 4), [6, 3], indices(2, high=6))
