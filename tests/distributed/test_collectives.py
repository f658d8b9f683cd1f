"""Every collective of torch.distributed on npu tensors of three ranks, against plain arithmetic.

One job runs many checks: starting processes costs more than the checks do.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import torch_npu
from tests.distributed import job
from torch_npu.distributed.distributed_c10d import backend_of

MOVED = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip
REDUCED = [
    torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip


def of_rank(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers that every rank can compute for every other."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randint(
        0 if dtype in (torch.bool, torch.uint8) else -3, 4, shape, generator=generator
    )
    return values.to(dtype)


def equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "npu"
    torch.testing.assert_close(actual.cpu().float(), expected.float(), rtol=0, atol=0)


def moving(rank: int) -> None:
    n = dist.get_world_size()
    for dtype in MOVED:
        all_ranks = [of_rank(r, dtype, 3, 2) for r in range(n)]
        mine = all_ranks[rank].npu()
        same = mine.clone()
        dist.broadcast(same, src=n - 1)
        assert torch.equal(same.cpu().view(torch.uint8), all_ranks[n - 1].view(torch.uint8))
        parts = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(parts, mine)
        for part, want in zip(parts, all_ranks, strict=True):
            assert torch.equal(part.cpu().view(torch.uint8), want.view(torch.uint8))
        whole = torch.empty(3 * n, 2, dtype=dtype, device="npu")
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole.cpu().view(torch.uint8), torch.cat(all_ranks).view(torch.uint8))
        out = [torch.empty_like(mine) for _ in range(n)] if rank == 0 else None
        dist.gather(mine, out, dst=0)
        if out is not None:
            assert torch.equal(
                out[n - 1].cpu().view(torch.uint8), all_ranks[n - 1].view(torch.uint8)
            )
        got = torch.empty_like(mine)
        dist.scatter(got, [t.npu() for t in all_ranks] if rank == 1 else None, src=1)
        assert torch.equal(got.cpu().view(torch.uint8), all_ranks[rank].view(torch.uint8))
        blocks = of_rank(rank, dtype, n, 2).npu()
        turned = torch.empty_like(blocks)
        dist.all_to_all_single(turned, blocks)
        want = torch.stack([of_rank(r, dtype, n, 2)[rank] for r in range(n)])
        assert torch.equal(turned.cpu().view(torch.uint8), want.view(torch.uint8))
        if rank == 0:
            dist.send(mine, 1)
        elif rank == 1:
            dist.recv(got, 0)
            assert torch.equal(got.cpu().view(torch.uint8), all_ranks[0].view(torch.uint8))


def reducing(rank: int) -> None:
    n = dist.get_world_size()
    ops = {
        dist.ReduceOp.SUM: lambda t: t.sum(0),
        dist.ReduceOp.PRODUCT: lambda t: t.prod(0),
        dist.ReduceOp.MIN: lambda t: t.amin(0),
        dist.ReduceOp.MAX: lambda t: t.amax(0),
    }
    for dtype in REDUCED:
        stacked = torch.stack([of_rank(r, dtype, 2 * n, 3).double() for r in range(n)])
        for op, reference in ops.items():
            want = reference(stacked)
            mine = of_rank(rank, dtype, 2 * n, 3).npu()
            dist.all_reduce(mine, op)
            equal(mine, want)
            mine = of_rank(rank, dtype, 2 * n, 3).npu()
            dist.reduce(mine, 1, op)
            equal(mine, want if rank == 1 else stacked[rank])
            mine = of_rank(rank, dtype, 2 * n, 3).npu()
            part = torch.empty(2, 3, dtype=dtype, device="npu")
            dist.reduce_scatter_tensor(part, mine, op)
            equal(part, want[2 * rank : 2 * rank + 2])
            part.zero_()
            dist.reduce_scatter(part, list(mine.chunk(n)), op)
            equal(part, want[2 * rank : 2 * rank + 2])
        mean = of_rank(rank, dtype, 2, 3).npu()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        want = torch.stack([of_rank(r, dtype, 2, 3).double() for r in range(n)]).sum(0) / n
        equal(mean, want.to(dtype) if dtype.is_floating_point else want.trunc())
    flags = of_rank(rank, torch.bool, 7).npu()
    dist.all_reduce(flags)
    equal(flags, torch.stack([of_rank(r, torch.bool, 7) for r in range(n)]).any(0))
    flags = of_rank(rank, torch.bool, 7).npu()
    dist.all_reduce(flags, dist.ReduceOp.PRODUCT)
    equal(flags, torch.stack([of_rank(r, torch.bool, 7) for r in range(n)]).all(0))
    scaled = torch.full((3,), float(rank + 1), device="npu")
    dist.all_reduce(scaled, torch_npu.distributed._make_hccl_premul_sum(0.5))
    equal(scaled, torch.full((3,), 0.5 * n * (n + 1) / 2))
    part = torch.empty(1, device="npu")
    dist.reduce_scatter_tensor(
        part, torch.full((n,), 2.0, device="npu"), torch_npu.distributed._make_hccl_premul_sum(2.0)
    )
    equal(part, torch.tensor([4.0 * n]))


def uneven(rank: int) -> None:
    n = dist.get_world_size()
    sizes = [r + 1 for r in range(n)]
    mine = torch.full((sizes[rank], 2), float(rank), device="npu")
    parts = [torch.empty(s, 2, device="npu") for s in sizes]
    dist.all_gather(parts, mine)
    for r, part in enumerate(parts):
        equal(part, torch.full((sizes[r], 2), float(r)))
    whole = torch.empty(sum(sizes), 2, device="npu")
    torch_npu.distributed.all_gather_into_tensor_uneven(whole, mine, sizes)
    equal(whole, torch.cat([torch.full((s, 2), float(r)) for r, s in enumerate(sizes)]))
    work = torch_npu.distributed.reduce_scatter_tensor_uneven(mine, whole, sizes, async_op=True)
    work.wait()
    equal(mine, torch.full((sizes[rank], 2), float(rank) * n))
    for count in (1, n, n + 2):  # a list of one size is one row, cut or filled with zeros
        rows = [torch.full((6,), float(i + 1), device="npu") for i in range(count)]
        part = torch.empty(4, device="npu")
        dist.reduce_scatter(part, rows)
        row = torch.cat(
            [torch.full((6,), float(i + 1)) for i in range(count)] + [torch.zeros(4 * n)]
        )
        equal(part, n * row[4 * rank : 4 * rank + 4])
    with pytest.raises(RuntimeError, match="input tensors, or any number of one size"):
        dist.reduce_scatter(
            torch.empty(1, device="npu"), [torch.ones(i + 1).npu() for i in range(n + 1)]
        )
    even = torch.empty(n, device="npu")
    torch_npu.distributed.all_gather_into_tensor_uneven(even, torch.ones(1, device="npu"))
    equal(even, torch.ones(n))
    # rank r sends s rows to rank s, none to rank 0
    send = list(range(n))
    rows = torch.cat([torch.full((s, 2), 10.0 * rank + s) for s in send]).npu()
    got = torch.empty(rank * n, 2, device="npu")
    dist.all_to_all_single(got, rows, [rank] * n, send)
    equal(got, torch.cat([torch.full((rank, 2), 10.0 * r + rank) for r in range(n)]))
    lists = [torch.full((s,), float(rank), device="npu") for s in sizes]
    arrived = [torch.empty(sizes[rank], device="npu") for _ in range(n)]
    dist.all_to_all(arrived, lists)
    for r, tensor in enumerate(arrived):
        equal(tensor, torch.full((sizes[rank],), float(r)))
    gathered = [torch.empty(s, 2, device="npu") for s in sizes] if rank == 0 else None
    dist.gather(torch.full((sizes[rank], 2), float(rank), device="npu"), gathered, 0)
    if gathered is not None:
        equal(gathered[n - 1], torch.full((n, 2), float(n - 1)))
    empty = torch.empty(0, device="npu")
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_to_all_single(torch.empty(0, 3, device="npu"), torch.empty(0, 3, device="npu"))
    scalar = torch.tensor(float(rank), device="npu")
    dist.all_reduce(scalar)
    assert scalar.item() == n * (n - 1) / 2


def messages(rank: int) -> None:
    n = dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    mine, got = torch.full((5,), float(rank), device="npu"), torch.empty(5, device="npu")
    requests = [dist.isend(mine, right, tag=3), dist.irecv(got, left, tag=3)]
    for request in requests:
        request.wait()
    equal(got, torch.full((5,), float(left)))
    got.zero_()
    batch = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    equal(got, torch.full((5,), float(left)))
    got.zero_()
    backend_of().batch_isend_irecv(["isend", "irecv"], [mine, got], [right, left]).wait()
    equal(got, torch.full((5,), float(left)))
    got.zero_()
    receive = dist.irecv(got, left)
    dist.isend(mine, right)
    while not receive.is_completed():
        pass
    assert receive.is_success(), receive.exception()
    equal(got, torch.full((5,), float(left)))
    with pytest.raises(
        RuntimeError, match="(?s)does not support recv from any source.*ERR02007 DIST"
    ):
        dist.recv(got)


def coalesced(rank: int) -> None:
    n = dist.get_world_size()
    device, group = torch.device("npu"), c10d._get_default_group()
    tensors = [torch.full((2,), float(rank), device="npu"), torch.full((3,), 1.0, device="npu")]
    with c10d._coalescing_manager(group, device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    equal(tensors[0], torch.full((2,), n * (n - 1) / 2))
    equal(tensors[1], torch.full((3,), float(n)))
    outs = [torch.empty(2 * n, device="npu"), torch.empty(n, device="npu")]
    with c10d._coalescing_manager(group, device):
        dist.all_gather_into_tensor(outs[0], torch.full((2,), float(rank), device="npu"))
        dist.all_gather_into_tensor(outs[1], torch.full((1,), float(rank), device="npu"))
    equal(outs[1], torch.arange(float(n)))
    parts = [torch.empty(1, device="npu"), torch.empty(2, device="npu")]
    with c10d._coalescing_manager(group, device):
        dist.reduce_scatter_tensor(parts[0], torch.ones(n, device="npu"))
        dist.reduce_scatter_tensor(parts[1], torch.ones(2 * n, device="npu"))
    equal(parts[1], torch.full((2,), float(n)))


def objects(rank: int) -> None:
    n = dist.get_world_size()
    everyone: list = [None] * n
    dist.all_gather_object(everyone, {"rank": rank})
    assert everyone == [{"rank": r} for r in range(n)]
    told: list = ["said", rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(told, 0)
    assert told == ["said", 0]
    gathered: list | None = [None] * n if rank == 0 else None
    dist.gather_object("x" * rank, gathered, 0)
    assert gathered is None or gathered == ["x" * r for r in range(n)]
    mine: list = [None]
    dist.scatter_object_list(mine, list(range(n)) if rank == 0 else None, 0)
    assert mine == [rank]
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20))


def works(rank: int) -> None:
    n = dist.get_world_size()
    tensor = torch.ones(1000, device="npu")
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() is True and work.is_completed() and work.is_success()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2).wait()
    equal(doubled, torch.full((1000,), 2.0 * n * n))
    assert doubled.device == tensor.device
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        fresh = torch.ones(10, device="npu")
        dist.all_reduce(fresh)
        fresh *= 2
    torch.npu.current_stream().wait_stream(stream)
    equal(fresh, torch.full((10,), 2.0 * n))
    batch = [dist.all_reduce(torch.ones(3, device="npu"), async_op=True) for _ in range(20)]
    for work in batch:
        work.wait()
    work = dist.reduce_scatter_tensor(
        torch.empty(1, device="npu"), torch.ones(n, device="npu"), async_op=True
    )
    equal(work.get_future().wait()[0], torch.tensor([float(n)]))


def callbacks(rank: int) -> None:
    """What runs when a future is there may begin operations of the same group, and wait for them."""
    n = dist.get_world_size()

    def gathered(future):
        total = future.value()[0]
        work = dist.all_reduce(total, async_op=True)
        work.get_future().wait()
        return (
            dist.all_reduce(total, async_op=True)
            .get_future()
            .then(lambda f: f.value()[0] + 1)
            .wait()
        )

    tensor = torch.ones(100, device="npu")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    equal(
        future.then(gathered).then(lambda f: f.value() * 2).wait(),
        2 * torch.full((100,), 1.0 * n**3 + 1),
    )


def layouts(rank: int) -> None:
    n = dist.get_world_size()
    picture = of_rank(rank, torch.float32, 1, 4, 2, 2).npu().to(memory_format=torch.channels_last)
    dist.all_reduce(picture)
    equal(picture, torch.stack([of_rank(r, torch.float32, 1, 4, 2, 2) for r in range(n)]).sum(0))
    base = torch.zeros(10, device="npu")
    dist.all_reduce(base[3:6].fill_(1))
    equal(base, torch.tensor([0.0] * 3 + [n] * 3 + [0.0] * 4))
    with pytest.raises(
        RuntimeError, match="(?s)Tensors must be contiguous.*ERR02002 DIST invalid type"
    ):
        backend_of().allreduce(
            [torch.zeros(4, 4, device="npu").t()[:, :2]], c10d.AllreduceOptions()
        )


def inference(rank: int) -> None:
    with torch.inference_mode():
        value = torch.ones(3, device="npu")
        dist.all_reduce(value)
        gathered = [torch.empty(3, device="npu") for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, value)
    for part in gathered:
        equal(part, torch.full((3,), float(dist.get_world_size())))


def everything(rank: int) -> None:
    parts = (
        moving,
        reducing,
        uneven,
        messages,
        coalesced,
        objects,
        works,
        callbacks,
        layouts,
        inference,
    )
    for part in parts:
        part(rank)


def test_collectives():
    job.run(everything, 3)
