"""Kind e: ranks that do not agree on their collectives; and collectives as work of a stream of their own (kind a)."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from softnpu import sanitizer
from tests.distributed import job


def _kinds(program, rank):
    """The kinds found on this rank, and how the program ended."""
    with sanitizer.record() as found:
        failed = ""
        try:
            program(rank)
        except RuntimeError as error:
            failed = str(error)
        torch.npu.synchronize()
    return [f.kind for f in found], [f.text for f in found], failed


def another_operation(rank):
    x = torch.ones(4, device="npu")
    dist.all_reduce(x) if rank == 0 else dist.broadcast(x, 0)


def another_shape(rank):
    dist.all_reduce(torch.ones(4 + 4 * rank, device="npu"))


def another_dtype(rank):
    dist.all_reduce(torch.ones(4, device="npu", dtype=torch.float32 if rank else torch.float16))


def another_order(rank):
    x, y = torch.ones(4, device="npu"), torch.ones(8, device="npu")
    for tensor in (x, y) if rank == 0 else (y, x):
        dist.all_reduce(tensor)


def one_more(rank):
    x = torch.ones(4, device="npu")
    if rank == 0:
        dist.all_reduce(x)
    dist.broadcast(x, 0)


def same(rank):
    x = torch.full((4,), float(rank), device="npu")
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    whole = torch.zeros(8, device="npu")
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(x, whole)
    parts = [torch.zeros(4, device="npu") for _ in range(2)]
    dist.all_gather(parts, x)
    dist.all_to_all_single(whole, whole.clone())
    dist.barrier()
    assert x.sum().item() >= 0


def several_dtypes_in_order(rank):
    for dtype in (torch.float32, torch.float16, torch.int32):
        dist.all_reduce(torch.ones(3, device="npu", dtype=dtype))


def uneven(rank):
    parts = [torch.zeros(2, device="npu"), torch.zeros(6, device="npu")]
    dist.all_gather(parts, torch.ones(2 + 4 * rank, device="npu"))


def messages(rank):
    x = torch.ones(4, device="npu")
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(x, 0)


def only_one_rank_computes(rank):
    x = torch.ones(4, device="npu")
    if rank == 0:
        x = x * 2 + 1
    dist.all_reduce(x)


WRONG = [another_operation, another_shape, another_dtype, another_order, one_more]
RIGHT = [same, several_dtypes_in_order, uneven, messages, only_one_rank_computes]


@pytest.mark.parametrize("program", WRONG, ids=lambda p: p.__name__)
def test_ranks_that_disagree_are_found(program, monkeypatch):
    monkeypatch.setenv("TEST_JOB_TIMEOUT", "10")
    answers = job.run(_kinds_of, 2, program.__name__)
    assert any("e" in kinds for kinds, _, _ in answers), answers
    text = next(texts[0] for kinds, texts, _ in answers if kinds)
    assert "rank 0" in text and "rank 1" in text and "test_collectives.py" in text


@pytest.mark.parametrize("program", RIGHT, ids=lambda p: p.__name__)
def test_ranks_that_agree_are_silent(program):
    for kinds, texts, failed in job.run(_kinds_of, 2, program.__name__):
        assert (kinds, failed) == ([], ""), texts


def _kinds_of(rank, name):
    return _kinds(globals()[name], rank)


def two_groups(rank, inverted):
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    x, y = torch.ones(4, device="npu"), torch.ones(4, device="npu")
    pairs = [(first, x), (second, y)]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for group, tensor in (pairs[::-1] if inverted and rank == 1 else pairs)
    ]
    for work in works:
        work.wait()


def _two_groups(rank, inverted):
    return _kinds(lambda r: two_groups(r, inverted), rank)


def test_two_communicators_that_wait_for_each_other():
    answers = job.run(_two_groups, 2, True)
    texts = [t for _, found, _ in answers for t in found]
    assert any("two communicators wait for each other" in text for text in texts), answers
    assert all(kinds == [] for kinds, _, _ in job.run(_two_groups, 2, False))


def asynchronous(rank, order):
    x = torch.ones(4, device="npu")
    work = dist.all_reduce(x, async_op=True)
    if order:
        work.wait()
    x + 1
    if not order:
        work.wait()


def written_meanwhile(rank, order):
    x, y = torch.ones(4, device="npu"), torch.zeros(8, device="npu")
    work = dist.all_gather_into_tensor(y, x, async_op=True)
    if order:
        work.wait()
    x.zero_()
    work.wait()


def from_another_stream(rank, order):
    x, side = torch.ones(4, device="npu"), torch.npu.Stream()
    torch.npu.synchronize()
    with torch.npu.stream(side):
        x.add_(1)
    if order:
        torch.npu.current_stream().wait_stream(side)
    dist.all_reduce(x)


def _asynchronous(rank, name, order):
    return _kinds(lambda r: globals()[name](r, order), rank)


@pytest.mark.parametrize("name", ["asynchronous", "written_meanwhile", "from_another_stream"])
def test_a_collective_is_work_of_its_communicators_stream(name):
    assert all(kinds == ["a"] for kinds, _, _ in job.run(_asynchronous, 2, name, False))
    for kinds, texts, failed in job.run(_asynchronous, 2, name, True):
        assert (kinds, failed) == ([], ""), texts


def training(rank):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def model():
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
        ).npu()

    with sanitizer.record() as found:
        mesh = torch.distributed.init_device_mesh("npu", (2,))
        sharded = model()
        for layer in sharded:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        for wrapped in (DistributedDataParallel(model()), sharded):
            optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
            for _ in range(3):
                wrapped(torch.randn(4, 8, device="npu")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.npu.synchronize()
    return [(f.kind, f.text, str(f.accesses)) for f in found]


def test_ddp_and_fsdp2_are_silent():
    assert job.run(training, 2) == [[], []]
