"""npu_quant_mm_reduce_scatter: what it refuses. Its values: test_npu_all_gather_quant_mm."""

import pytest
import torch

import torch_npu
from tests.ops.support import make

NAME = "softnpu%mirror_2"


def test_refusals():
    x1, x2 = make(4, 32).half(), make(32, 6).half()
    with pytest.raises(RuntimeError, match="'reduce_op' must be 'sum', but received 'max'"):
        torch_npu.npu_quant_mm_reduce_scatter(x1, x2, NAME, 2, reduce_op="max")
    with pytest.raises(RuntimeError, match=r"'self' must be of rows divisible by world_size \(2\)"):
        torch_npu.npu_quant_mm_reduce_scatter(x1[:3], x2, NAME, 2)
    with pytest.raises(RuntimeError, match="'world_size' must be 2, 4, 8, 16, 32 or 64"):
        torch_npu.npu_quant_mm_reduce_scatter(x1, x2, NAME, 3)
    with pytest.raises(RuntimeError, match=r"'x2' must be of shape \(32, \*\).*\(16, 6\)"):
        torch_npu.npu_quant_mm_reduce_scatter(x1, x2[:16], NAME, 2)


def test_few_ranks_without_the_host():
    x = make(16, 16, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="'world_size' must be 2, 4 or 8, but received 16"):
        torch_npu.npu_quant_mm_reduce_scatter(x, x, "softnpu%mirror_16", 16, comm_mode="aiv")
