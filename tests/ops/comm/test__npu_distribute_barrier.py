"""_npu_distribute_barrier in a mirrored group, and on ranks of which one is gone. All ranks: test_quant_products_on_ranks."""

import time

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.support import make
from torch_npu.distributed.distributed_c10d import backend_of

NAME = "softnpu%mirror_2"


def elastic(left, ranks):
    """What is left of a group, as upstream's operators of MoE take it."""
    places = [left.index(rank) if rank in left else -1 for rank in range(ranks)]
    table = [*left, *[-1] * (ranks - len(left))][:ranks]
    return torch.tensor([1, len(left), 0, 0, *places, *table], dtype=torch.int32).npu()


def survivors(rank: int) -> None:
    """Ranks 0 and 2 wait for each other, not for rank 1; then all do, as the first number says."""
    name, ranks = backend_of(dist.group.WORLD).get_hccl_comm_name(rank), dist.get_world_size()
    info, x = elastic([0, 2], ranks), torch.arange(3.0).npu() + rank
    store = dist.distributed_c10d._get_default_store()
    if rank == 2:
        time.sleep(0.3)
        store.set("came", "yes")
    if rank != 1:
        y = torch_npu._npu_distribute_barrier(x, name, ranks, elastic_info=info)
        assert torch.equal(y, x) and store.check(["came"])
    whole = info.clone()
    whole[0] = 0
    assert torch.equal(torch_npu._npu_distribute_barrier(x, name, ranks, elastic_info=whole), x)


def test_ranks_that_are_left():
    job.run(survivors, 3)


def test_returns_the_values():
    x = make(3, 4)
    assert torch.equal(torch_npu._npu_distribute_barrier(x, NAME, 2).cpu(), x.cpu())


def test_refusals():
    with pytest.raises(RuntimeError, match=r"'world_size' must be the number of ranks.*\(2\)"):
        torch_npu._npu_distribute_barrier(make(3), NAME, 4)
    for info, message in (
        (make(8), "'elastic_info' must be of dtype torch.int32"),
        (torch.zeros(3).int().npu(), r"'elastic_info' must be of shape \(8\)"),
        (elastic([0, 1, 0], 2), r"'elastic_info' must be of 1 to 2 ranks that are left.*3"),
        (elastic([0, 0], 2), "'elastic_info' must be of two lists that agree"),
        (elastic([2], 2), "'elastic_info' must be of two lists that agree"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch_npu._npu_distribute_barrier(make(3), NAME, 2, elastic_info=info)
    with pytest.raises(RuntimeError, match="'time_out' must be of dtype torch.int32"):
        torch_npu._npu_distribute_barrier(make(3), NAME, 2, time_out=make(1))


def test_one_rank_needs_no_barrier():
    x = torch.ones(1).npu()
    with pytest.raises(RuntimeError, match=r"'world_size' must be in \[2, 768\], but received 1"):
        torch_npu._npu_distribute_barrier(x, "softnpu%mirror_1", 1)
