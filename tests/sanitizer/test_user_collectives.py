"""Programs of two ranks as people write them, each with the wait that it forgot and with it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from softnpu import sanitizer
from tests.distributed import job


def gradient_hooks(order):
    """A hook starts the reduction of each gradient; the step must wait for all of them."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).npu(), torch.ones(4, 8).npu()
    optimizer, works = torch.optim.SGD(model.parameters(), 0.1), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    model(x).sum().backward()
    for work in works if order else works[:-1]:
        work.wait()
    optimizer.step()
    works[-1].wait()


def buckets(order):
    """Flat buckets that are filled again while the last reduction runs."""
    bucket, parts = torch.zeros(32, device="npu"), torch.ones(3, 32, device="npu")
    work = None
    for part in parts:
        if work is not None and order:
            work.wait()
        bucket.copy_(part)
        work = dist.all_reduce(bucket, async_op=True)
    work.wait()


def sharded_parameters(order):
    """The next layer's parameters are gathered while this one computes."""
    shard, x = torch.ones(8, device="npu"), torch.ones(4, 16, device="npu")
    whole = [torch.empty(16, device="npu") for _ in range(2)]
    works = [dist.all_gather_into_tensor(one, shard, async_op=True) for one in whole]
    for work, weight in zip(works, whole, strict=True):
        if order:
            work.wait()
        x = x * weight
    for work in works:
        work.wait()


def reduction_on_a_side_stream(order):
    """A collective is ordered behind its current stream, not behind the one that made the gradient."""
    grad, side = torch.zeros(64, device="npu"), torch.npu.Stream()
    torch.npu.synchronize()
    grad.add_(3)
    if order:
        side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        work = dist.all_reduce(grad, async_op=True)
    work.wait()
    grad.mul_(2)


def waited_for_on_another_stream(order):
    """work.wait() holds up the current stream alone."""
    x, side = torch.ones(64, device="npu"), torch.npu.Stream()
    torch.npu.synchronize()
    work = dist.all_reduce(x, async_op=True)
    with torch.npu.stream(torch.npu.current_stream() if order else side):
        work.wait()
    x.mul_(2)
    torch.npu.current_stream().wait_stream(side)


def pipeline(order):
    """An activation is overwritten while it is sent."""
    peer, out = 1 - dist.get_rank(), torch.ones(64, device="npu")
    into = torch.zeros(64, device="npu")
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer)]
    )
    if order:
        for work in works:
            work.wait()
    out.mul_(2)
    for work in works:
        work.wait()


PROGRAMS = [
    gradient_hooks, buckets, sharded_parameters, reduction_on_a_side_stream, waited_for_on_another_stream, pipeline,
]  # fmt: skip


def kinds(rank):
    """{program: (kinds without the wait, with it)}"""
    answer = {}
    for program in PROGRAMS:
        found = []
        for order in (False, True):
            torch.npu.synchronize()
            with sanitizer.record() as told:
                program(order)
            torch.npu.synchronize()
            dist.barrier()
            found.append("".join(sorted({f.kind for f in told})))
        answer[program.__name__] = tuple(found)
    return answer


def test_collectives_that_are_not_waited_for():
    expected = {program.__name__: ("a", "") for program in PROGRAMS}
    assert job.run(kinds, 2) == [expected, expected]
