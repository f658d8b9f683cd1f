"""Collectives on streams that do not run now: behind an event that nobody has recorded, and in a graph."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import torch_npu
from tests.distributed import job
from torch_npu.distributed.distributed_c10d import backend_of


def ones(*shape: int, value: float = 1.0) -> torch.Tensor:
    return torch.full(shape, value, device="npu")


def blocked(rank: int) -> None:
    """Everything behind the gate happens when it opens, in order, and no wait holds the host."""
    n = dist.get_world_size()
    gate, side = torch.npu.ExternalEvent(), torch.npu.Stream()
    x, got, whole = ones(4), ones(4, value=0.0), ones(4 * n, value=0.0)
    with torch.npu.stream(side):
        gate.wait()
        x += rank  # not yet
        dist.all_reduce(x)
        x *= 2
        work = dist.all_gather_into_tensor(whole, x, async_op=True)
        assert not work.is_completed() and not work.is_success()
        work.wait()
        whole += 1
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, (rank + 1) % n),
                dist.P2POp(dist.irecv, got, (rank - 1) % n),
            ]
        )
        for request in requests:
            request.wait()
        later = dist.all_reduce(got, async_op=True)
    assert x.data_ptr() and not side.query()
    free = torch.npu.Stream()
    with torch.npu.stream(free):  # another stream orders itself behind the operation
        later.wait()
        copied = got * 10
    assert not free.query()
    value = later.get_future().then(lambda f: f.value()[0] + 1).wait()
    gate.record(torch.npu.Stream())
    torch.npu.synchronize()
    total = 2.0 * sum(1 + r for r in range(n))
    assert x.tolist() == [total] * 4
    assert whole.tolist() == [total + 1] * 4 * n
    assert copied.tolist() == [10 * n * total] * 4
    assert value.tolist() == [n * total + 1] * 4


def host_waits(rank: int) -> None:
    """A barrier holds the host: behind a gate that nobody can open the card would hang."""
    gate, side = torch.npu.ExternalEvent(), torch.npu.Stream()
    with torch.npu.stream(side):
        gate.wait()
        work = dist.barrier(async_op=True)
        with pytest.raises(RuntimeError, match="barrier would never return: .*nobody is left"):
            work.wait()
        gate.record(torch.npu.Stream())
    torch.npu.synchronize()
    dist.barrier()


def captured(rank: int) -> None:
    """A graph communicates when it is replayed, with the data of then; the capture itself computes nothing."""
    n = dist.get_world_size()
    x, kept = ones(3), ones(3, value=7.0)
    graph = torch.npu.NPUGraph()
    before = backend_of()._sequence()
    with torch.npu.graph(graph):
        y = x * 2
        dist.all_reduce(y)
        y += 1
        whole = torch.empty(3 * n, device="npu")
        work = dist.all_gather_into_tensor(whole, y, async_op=True)
        dist.all_reduce(kept)
        work.wait()
        part = torch.empty(3, device="npu")
        dist.reduce_scatter_tensor(part, whole)
        turned = torch.empty(3 * n, device="npu")
        dist.all_to_all_single(turned, whole * (rank + 1))
        got = torch.empty(3, device="npu")
        send, receive = dist.isend(y, (rank + 1) % n), dist.irecv(got, (rank - 1) % n)
        receive.wait()
        send.wait()
        got *= 3
    assert backend_of()._sequence() == before and kept.tolist() == [7.0] * 3
    for turn in range(3):
        x.fill_(rank + turn)
        graph.replay()
        want = 2.0 * sum(r + turn for r in range(n)) + 1
        assert y.tolist() == [want] * 3 and whole.tolist() == [want] * 3 * n
        assert part.tolist() == [n * want] * 3
        assert turned.tolist() == [want * (r + 1) for r in range(n) for _ in range(3)]
        assert got.tolist() == [3 * want] * 3
        assert kept.tolist() == [7.0 * n ** (turn + 1)] * 3


def captured_operator(rank: int) -> None:
    """An operator that communicates does so in every replay."""
    n, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    x, w = ones(2, 256).half(), ones(256, 4).half()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = torch_npu.npu_mm_all_reduce_base(x, w, name) + 1
    for turn in range(2):
        x.fill_(rank + turn)
        graph.replay()
        assert (y == 256 * sum(r + turn for r in range(n)) + 1).all()


def captured_coalesced(rank: int) -> None:
    n, group = dist.get_world_size(), c10d._get_default_group()
    a, b = ones(2), ones(3)
    graph = torch.npu.NPUGraph()
    with (
        torch.npu.graph(graph),
        c10d._coalescing_manager(group, torch.device("npu"), async_ops=True) as all_of_them,
    ):
        dist.all_reduce(a)
        dist.all_reduce(b)
    refused = pytest.raises(
        RuntimeError, match="(?s)107027.*barrier makes the host wait for stream"
    )
    with refused, torch.npu.graph(torch.npu.NPUGraph()):
        dist.barrier()
    all_of_them.wait()
    graph.replay()
    torch.npu.synchronize()
    dist.barrier()
    assert a.tolist() == [float(n)] * 2 and b.tolist() == [float(n)] * 3


def everything(rank: int) -> None:
    for part in (blocked, host_waits, captured, captured_operator, captured_coalesced):
        part(rank)


def test_streams():
    job.run(everything, 2)
