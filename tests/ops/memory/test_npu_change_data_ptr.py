"""npu_change_data_ptr: a tensor on a part of another one's memory."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_it_shares_the_memory(dtype):
    whole, part = torch.zeros(10, dtype=dtype).npu(), make(2, 2, dtype=dtype)
    assert torch_npu.npu_change_data_ptr(part, whole, 3) == 0
    assert part.data_ptr() == whole.data_ptr() + 3 * dtype.itemsize
    part.fill_(1)
    assert whole.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]
    whole.fill_(2)
    assert part.tolist() == [[2, 2], [2, 2]]


def test_the_memory_lives_as_long_as_either():
    before = torch.npu.memory_allocated()
    whole, part = torch.ones(1000).npu(), torch.zeros(10).npu()
    torch_npu.npu_change_data_ptr(part, whole, 0)
    del whole
    other = torch.zeros(1000).npu()
    assert part.sum() == 10
    del part, other
    assert torch.npu.memory_allocated() == before


def test_bad_arguments():
    whole, part = make(10), make(4)
    with pytest.raises(RuntimeError, match="'index' must be 0 or more.*-1"):
        torch_npu.npu_change_data_ptr(part, whole, -1)
    with pytest.raises(RuntimeError, match="such that 4 elements fit into the 10 of 'src'.*7"):
        torch_npu.npu_change_data_ptr(part, whole, 7)
    with pytest.raises(RuntimeError, match="'dst' must be of the dtype of 'src'"):
        torch_npu.npu_change_data_ptr(make(4, dtype=torch.float16), whole, 0)
    with pytest.raises(RuntimeError, match="'dst' must be of dtype .*int32"):
        torch_npu.npu_change_data_ptr(make(4, dtype=torch.int32, high=3), whole, 0)
    with pytest.raises(RuntimeError, match="'src' must be an NPU tensor"):
        torch_npu.npu_change_data_ptr(part, torch.zeros(10), 0)
