"""_npu_distribute_barrier in a mirrored group. On ranks: test_quant_products_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.support import make

NAME = "softnpu%mirror_2"


def test_returns_the_values():
    x = make(3, 4)
    assert torch.equal(torch_npu._npu_distribute_barrier(x, NAME, 2).cpu(), x.cpu())


def test_refusals():
    with pytest.raises(RuntimeError, match=r"'world_size' must be the number of ranks.*\(2\)"):
        torch_npu._npu_distribute_barrier(make(3), NAME, 4)
    with pytest.raises(NotImplementedError, match="'elastic_info' must be None"):
        torch_npu._npu_distribute_barrier(make(3), NAME, 2, elastic_info=make(3))
    with pytest.raises(RuntimeError, match="'time_out' must be of dtype torch.int32"):
        torch_npu._npu_distribute_barrier(make(3), NAME, 2, time_out=make(1))


def test_one_rank_needs_no_barrier():
    x = torch.ones(1).npu()
    with pytest.raises(RuntimeError, match=r"'world_size' must be in \[2, 768\], but received 1"):
        torch_npu._npu_distribute_barrier(x, "softnpu%mirror_1", 1)
