"""torch_npu.utils.combine_tensors: tensors that become windows of one."""

import pytest
import torch

from torch_npu.utils import get_part_combined_tensor, is_combined_tensor_valid, npu_combine_tensors

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.int64]


def tensors(dtype=torch.float32):
    counts = (torch.arange(16).reshape(2, 2, 4), torch.arange(9), torch.tensor(5))
    return [t.to(dtype).npu() for t in counts]


@pytest.mark.parametrize("dtype", DTYPES)
def test_combine(dtype):
    parts = tensors(dtype)
    shapes, values = [t.shape for t in parts], [t.clone() for t in parts]
    combined = npu_combine_tensors(parts)
    assert combined.shape == (26,) and combined.dtype == dtype and combined.is_contiguous()
    assert [t.shape for t in parts] == shapes
    assert all(torch.equal(t, v) for t, v in zip(parts, values, strict=True))
    size = combined.element_size()
    starts = [(t.data_ptr() - combined.data_ptr()) // size for t in parts]
    assert starts == [0, 16, 25]
    combined.add_(1)
    assert all(torch.equal(t, v + 1) for t, v in zip(parts, values, strict=True))


def test_without_values():
    parts = tensors()
    combined = npu_combine_tensors(parts, require_copy_value=False)
    assert (combined == 0).all() and (parts[1] == 0).all()


def test_parameters_stay_leaves():
    parameter = torch.nn.Parameter(torch.ones(3, device="npu"))
    combined = npu_combine_tensors([parameter])
    assert parameter.is_leaf and parameter.requires_grad and not combined.requires_grad
    (parameter * 2).sum().backward()
    assert (parameter.grad == 2).all()


def test_nothing_to_combine():
    assert npu_combine_tensors([]) is None
    assert npu_combine_tensors([torch.empty(0, device="npu")]) is None


def test_part():
    combined = npu_combine_tensors(tensors())
    part = get_part_combined_tensor(combined, 16, 9)
    assert part.tolist() == list(range(9))
    part.zero_()
    assert (combined[16:25] == 0).all()
    assert get_part_combined_tensor(combined, 3, 0) is None
    assert get_part_combined_tensor(None, 0, 4) is None


@pytest.mark.parametrize("index,size", [(20, 7), (26, 1), (-1, 2), (0, -1)])
def test_part_outside(index, size):
    combined = npu_combine_tensors(tensors())
    with pytest.raises(RuntimeError, match=f"of 26 elements, but received {index} and {size}"):
        get_part_combined_tensor(combined, index, size)


def test_validity():
    parts = tensors()
    combined = npu_combine_tensors(parts)
    assert is_combined_tensor_valid(combined, parts)
    assert is_combined_tensor_valid(combined, [])
    assert is_combined_tensor_valid(None, [])
    assert not is_combined_tensor_valid(None, parts)
    assert not is_combined_tensor_valid(combined, [*parts, None])
    assert not is_combined_tensor_valid(combined, [parts[0].clone()])
    assert not is_combined_tensor_valid(combined, [parts[0].transpose(0, 2)])


def test_refusals():
    with pytest.raises(RuntimeError, match="must not be None"):
        npu_combine_tensors([torch.ones(2, device="npu"), None])
    with pytest.raises(RuntimeError, match="must be of one dtype, but received .*float32 and .*16"):
        npu_combine_tensors([torch.ones(2, device="npu"), torch.ones(2, device="npu").half()])
    with pytest.raises(RuntimeError, match="must be on an npu, but received one on cpu"):
        npu_combine_tensors([torch.ones(2)])
    with pytest.raises(RuntimeError, match=r"must be contiguous, but received strides \(1, 2\)"):
        npu_combine_tensors([torch.ones(3, 2, device="npu").t()])
