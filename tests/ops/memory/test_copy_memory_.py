"""copy_memory_: the memory, not the elements."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.int32, torch.int8, torch.bool]
)
@pytest.mark.parametrize("shape", [(9, 13), (3, 16, 5, 5), (1,), (0, 4), ()])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_contiguous_tensors(dtype, shape, non_blocking):
    a, b = make(*shape, dtype=dtype, high=2, seed=1), make(*shape, dtype=dtype, high=2, seed=2)
    expected = b.cpu()
    assert torch_npu.copy_memory_(a, b, non_blocking) is a
    assert torch.equal(a.cpu(), expected)


def test_the_page():
    a, b = torch.IntTensor([0, 0, -1]).npu(), torch.IntTensor([1, 1, 1]).npu()
    assert torch_npu.copy_memory_(a, b).tolist() == [1, 1, 1]


def test_strides_are_not_looked_at():
    source = torch.arange(6, dtype=torch.float32).npu().view(2, 3)
    target = torch.zeros(3, 2).npu()
    torch_npu.copy_memory_(target, source.t())
    assert target.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_it_begins_where_the_tensors_begin():
    source, target = torch.arange(10.0).npu(), torch.zeros(10).npu()
    torch_npu.copy_memory_(target[2:5], source[4:])
    assert target.tolist() == [0, 0, 4, 5, 6, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("number", [3, 29])
def test_private_formats(number):
    torch.npu.config.allow_internal_format = True
    try:
        a, b = make(2, 3, 4, 4), make(2, 3, 4, 4, seed=4)
        values = b.cpu()
        target = torch_npu.npu_format_cast(a, number)
        torch_npu.copy_memory_(target, torch_npu.npu_format_cast(b, number))
        assert torch.equal(target.cpu(), values)
        torch_npu.copy_memory_(target, a)  # less memory than the padded target has
        assert torch.equal(target.cpu(), a.cpu())
        with pytest.raises(
            RuntimeError, match="argument 'self' must be at the start of its storage"
        ):
            torch_npu.copy_memory_(target[1:], b)
        with pytest.raises(
            RuntimeError, match="argument 'src' must be at the start of its storage"
        ):
            torch_npu.copy_memory_(a[1:], target[1:])
    finally:
        torch.npu.config.allow_internal_format = False


def test_it_counts_as_a_write():
    x = make(3, requires_grad=True)
    y = x * 1
    loss = (y * y).sum()
    torch_npu.copy_memory_(y, make(3, seed=8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_compiled():
    torch._dynamo.reset()

    def body(a, b):
        a = a * 1
        torch_npu.copy_memory_(a, b)
        return a + 1

    a, b = make(3, 4), make(3, 4, seed=1)
    assert torch.equal(torch.compile(body, backend="aot_eager")(a, b).cpu(), b.cpu() + 1)


def test_bad_arguments():
    a = make(3)
    with pytest.raises(RuntimeError, match="argument 'src' must be an NPU tensor.*cpu"):
        torch_npu.copy_memory_(a, torch.zeros(3))
    with pytest.raises(RuntimeError, match="'src' must be of the dtype of 'self'.*float16"):
        torch_npu.copy_memory_(a, make(3, dtype=torch.float16))
    with pytest.raises(RuntimeError, match="'self' must be on the device of 'src'.*npu:0"):
        torch_npu.copy_memory_(a, torch.zeros(3, device="npu:1"))
    with pytest.raises(RuntimeError, match="'src' must be of at least 3 elements of memory.*2"):
        torch_npu.copy_memory_(a, make(2))
    with pytest.raises(RuntimeError, match="'src' must be of at least 3 elements of memory.*1"):
        torch_npu.copy_memory_(a, make(5)[4:].expand(3))
