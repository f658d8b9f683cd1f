"""Thousands of mixed collectives on four ranks: every result is checked, and memory stays flat. And many ranks start.

`SOAK_COLLECTIVES=20000` makes it as long as a night's run wants it.
"""

from __future__ import annotations

import os
import random
import resource
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed import job
from torch_npu.distributed.distributed_c10d import backend_of

COUNT = int(os.environ.get("SOAK_COLLECTIVES", "400"))


def one(step: int, rank: int, ranks: int, dice: random.Random) -> None:
    """One collective of random kind and size; all ranks roll the same dice."""
    size = dice.choice([1, 7, 64, 1000])
    dtype = dice.choice([torch.float32, torch.bfloat16, torch.int32])
    mine = torch.full((size,), rank + step % 5, dtype=dtype, device="npu")
    total = sum(r + step % 5 for r in range(ranks))
    match dice.randrange(6):
        case 0:
            dist.all_reduce(mine)
            assert (mine == total).all()
        case 1:
            root = dice.randrange(ranks)
            dist.broadcast(mine, root)
            assert (mine == root + step % 5).all()
        case 2:
            out = torch.empty(ranks * size, dtype=dtype, device="npu")
            dist.all_gather_into_tensor(out, mine)
            assert all((out[r * size] == r + step % 5).item() for r in range(ranks))
        case 3:
            out = torch.empty(size, dtype=dtype, device="npu")
            dist.reduce_scatter_tensor(out, mine.repeat(ranks))
            assert (out == total).all()
        case 4:
            out = torch.empty(ranks * size, dtype=dtype, device="npu")
            dist.all_to_all_single(out, mine.repeat(ranks))
            assert all((out[r * size] == r + step % 5).item() for r in range(ranks))
        case 5:
            out = torch.empty_like(mine)
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, out, left)]
            ):
                work.wait()
            assert (out == left + step % 5).all()


def comes_down(most: int) -> bool:
    """Whether device memory comes down to this much; the last works release their tensors a moment later."""
    for _ in range(100):
        if torch.npu.memory_allocated() <= most:
            return True
        time.sleep(0.05)
    return False


def soak(rank: int, count: int) -> tuple[int, int, int]:
    ranks, dice = dist.get_world_size(), random.Random(3)
    for step in range(count // 4):
        one(step, rank, ranks, dice)
    before, device = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        torch.npu.memory_allocated(),
    )
    for step in range(count - count // 4):
        one(step, rank, ranks, dice)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert comes_down(device), f"device memory grew from {device} to {torch.npu.memory_allocated()}"
    return before, after, backend_of()._sequence()


def test_soak():
    for before, after, operations in job.run(
        soak, 4, COUNT, timeout=3600, env={"TEST_JOB_TIMEOUT": "600"}
    ):
        assert operations >= COUNT
        assert after - before < 8 * 1024, f"resident memory grew from {before} to {after} KiB"


def meet(rank: int) -> tuple[float, float]:
    """When all ranks have met, and the processor time that this one took for it."""
    total = torch.ones(1, device="npu")
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    return time.monotonic(), time.process_time()


@pytest.mark.slow
def test_sixteen_ranks_start():
    began = time.monotonic()
    answers = job.run(meet, 16, fresh=True, timeout=300, env={"TEST_JOB_TIMEOUT": "300"})
    took, work = max(a[0] for a in answers) - began, sum(a[1] for a in answers)
    print(f"16 ranks met after {took:.1f} s; {work:.1f} s of processor time")
    assert min(took, work / 2) < 60  # of two cores, whatever else runs on them
