"""hccl when the n-th allocation fails, for every n: an error, nothing leaked, and the same operation works afterwards."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

import torch_npu
from softnpu import faults
from tests.distributed import job

MAX = 200


def ones(*shape: int) -> torch.Tensor:
    return torch.full(shape, dist.get_rank() + 1.0, device="npu")


def all_reduce() -> Any:
    x = ones(8)
    dist.all_reduce(x)
    return x


def all_gather() -> Any:
    parts = [torch.empty(4, device="npu") for _ in range(2)]
    dist.all_gather(parts, ones(4))
    return parts


def reduce_scatter() -> Any:
    out = torch.empty(4, dtype=torch.bfloat16, device="npu")
    dist.reduce_scatter_tensor(out, ones(8).bfloat16())
    return out


def all_to_all() -> Any:
    out = [torch.empty(3, device="npu") for _ in range(2)]
    dist.all_to_all(out, [ones(3), ones(3)])
    return out


def product() -> Any:
    name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank())
    return torch_npu.npu_mm_all_reduce_base(ones(4, 8).half(), ones(8, 4).half(), name)


def training() -> Any:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 4).npu())
    model(ones(2, 4)).sum().backward()
    return model.module.weight.grad


def messages() -> Any:
    x = ones(4)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, 1 - dist.get_rank()),
            dist.P2POp(dist.irecv, y := torch.empty(4, device="npu"), 1 - dist.get_rank()),
        ]
    )
    for work in works:
        work.wait()
    return y


def captured() -> Any:
    x = ones(8)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        dist.all_reduce(x)
        y = x * 2
    graph.replay()
    return y


def subgroup() -> Any:
    """A group that is made and destroyed around the operation, whatever becomes of it."""
    group = dist.new_group([0, 1])
    try:
        x = ones(8)
        dist.all_reduce(x, group=group)
        return x + 1
    finally:
        dist.destroy_process_group(group)


OPERATIONS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        all_reduce, all_gather, reduce_scatter, all_to_all, product, messages, training, captured, subgroup,
    )
}  # fmt: skip


def wait_until_freed() -> None:
    """Nothing is allocated any more: the transport's thread lets go of a tensor after it told the end."""
    deadline = time.monotonic() + 20
    while torch.npu.memory_allocated() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert torch.npu.memory_allocated() == 0


def every_allocation(rank: int, name: str) -> int:
    """Both ranks lack memory at the same place, and go on together afterwards."""
    operation = OPERATIONS[name]
    expected = tree_map(torch.Tensor.cpu, operation())
    wait_until_freed()
    for nth in range(1, MAX):
        failed = torch.zeros(1)
        faults.out_of_memory(nth, device=torch.npu.current_device())
        try:
            operation()
        except torch.OutOfMemoryError as error:
            assert "out of memory" in str(error)
            failed += 1
        faults.clear()
        wait_until_freed()
        torch.testing.assert_close(tree_map(torch.Tensor.cpu, operation()), expected)
        if not failed:
            return nth
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize(
    "name", [n if n != "training" else pytest.param(n, marks=pytest.mark.slow) for n in OPERATIONS]
)
def test_every_allocation(name):
    one, two = job.run(every_allocation, 2, name, env={"HCCL_EXEC_TIMEOUT": "30"})
    assert one == two > 1
