"""What a collective reads and what it writes on each rank: while it runs, reads of what it reads are right (kind a)."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist

from softnpu import sanitizer
from tests.distributed import job

#: the accesses that race with the collective on rank 0 and rank 1: to its input and to its output; "r" reading races too
# (it is written), "w" only writing does (it is read), "" nothing does
ROLES = {
    "broadcast": ({"x": "w"}, {"x": "rw"}),
    "all_reduce": ({"x": "rw"}, {"x": "rw"}),
    "reduce": ({"x": "rw"}, {"x": "w"}),
    "all_gather": ({"x": "w", "parts": "rw"}, {"x": "w", "parts": "rw"}),
    "all_gather_into_tensor": ({"x": "w", "whole": "rw"}, {"x": "w", "whole": "rw"}),
    "gather": ({"x": "w", "parts": "rw"}, {"x": "w", "parts": ""}),
    "scatter": ({"x": "rw", "parts": "w"}, {"x": "rw", "parts": ""}),
    "reduce_scatter": ({"x": "rw", "parts": "w"}, {"x": "rw", "parts": "w"}),
    "reduce_scatter_tensor": ({"x": "rw", "whole": "w"}, {"x": "rw", "whole": "w"}),
    "all_to_all": ({"parts": "rw", "others": "w"}, {"parts": "rw", "others": "w"}),
    "all_to_all_single": ({"whole": "rw", "other": "w"}, {"whole": "rw", "other": "w"}),
    "message": ({"x": "w"}, {"x": "rw"}),
    "batch": ({"x": "w", "whole": "rw"}, {"x": "w", "whole": "rw"}),
    "coalesced": ({"x": "rw", "whole": "rw"}, {"x": "rw", "whole": "rw"}),
}


class Tensors:
    def __init__(self):
        self.x, self.y = torch.ones(4, device="npu"), torch.ones(4, device="npu")
        self.whole, self.other = torch.ones(8, device="npu"), torch.ones(8, device="npu")
        self.parts = [torch.ones(4, device="npu") for _ in range(2)]
        self.others = [torch.ones(4, device="npu") for _ in range(2)]
        torch.npu.synchronize()

    def begin(self, name, rank):
        """Starts the collective; its works."""
        root, options = rank == 0, {"async_op": True}
        if name == "broadcast":
            return [dist.broadcast(self.x, 0, **options)]
        if name == "all_reduce":
            return [dist.all_reduce(self.x, **options)]
        if name == "reduce":
            return [dist.reduce(self.x, 0, **options)]
        if name == "all_gather":
            return [dist.all_gather(self.parts, self.x, **options)]
        if name == "all_gather_into_tensor":
            return [dist.all_gather_into_tensor(self.whole, self.x, **options)]
        if name == "gather":
            return [dist.gather(self.x, self.parts if root else None, 0, **options)]
        if name == "scatter":
            return [dist.scatter(self.x, self.parts if root else None, 0, **options)]
        if name == "reduce_scatter":
            return [dist.reduce_scatter(self.x, self.parts, **options)]
        if name == "reduce_scatter_tensor":
            return [dist.reduce_scatter_tensor(self.x, self.whole, **options)]
        if name == "all_to_all":
            return [dist.all_to_all(self.parts, self.others, **options)]
        if name == "all_to_all_single":
            return [dist.all_to_all_single(self.whole, self.other, **options)]
        if name == "message":
            return [dist.isend(self.x, 1) if root else dist.irecv(self.x, 0)]
        if name == "batch":
            peer = 1 - rank
            return dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, self.x, peer), dist.P2POp(dist.irecv, self.whole[:4], peer)]
            )
        with dist._coalescing_manager(device=torch.device("npu"), async_ops=True) as together:
            dist.all_reduce(self.x)
            dist.all_reduce(self.whole)
        return [together]


def _races(name, rank, attribute, writes):
    tensors = Tensors()
    touched = getattr(tensors, attribute)
    with sanitizer.record() as found:
        works = tensors.begin(name, rank)
        for tensor in touched if isinstance(touched, list) else [touched]:
            tensor.fill_(1) if writes else tensor.sum()
        for work in works:
            work.wait()
        torch.npu.synchronize()
    assert {f.kind for f in found} <= {"a"}
    return bool(found)


def roles(rank, name):
    """{attribute: "r" if reading it races, "w" if writing it does}"""
    return {
        attribute: "".join(
            letter
            for letter, writes in (("r", False), ("w", True))
            if _races(name, rank, attribute, writes)
        )
        for attribute in ROLES[name][0]
    }


def waited(rank, name):
    """After wait() everything is right."""
    with sanitizer.record(poison=True) as found:
        tensors = Tensors()
        for work in tensors.begin(name, rank):
            work.wait()
        for tensor in (tensors.x, tensors.whole, *tensors.parts, *tensors.others):
            tensor.add_(1)
        torch.npu.synchronize()
    return [(f.kind, f.text) for f in found]


@pytest.mark.parametrize("name", ROLES)
def test_what_a_collective_reads_and_writes(name):
    assert job.run(roles, 2, name) == list(ROLES[name])
    assert job.run(waited, 2, name) == [[], []]


def unwritten(rank):
    """Reductions read what they reduce, a broadcast what its root sends; receivers may be fresh."""
    answers = []
    for wrong in (
        lambda: dist.all_reduce(torch.empty(4, device="npu")),
        lambda: dist.broadcast(torch.empty(4, device="npu"), 0),
        lambda: dist.reduce(torch.empty(4, device="npu"), 0),
    ):
        with sanitizer.record(poison=True) as found:
            wrong()
            torch.npu.synchronize()
        answers.append([f.kind for f in found])
    return answers


def test_unwritten_memory_that_is_sent():
    assert job.run(unwritten, 2) == [[["g"], ["g"], ["g"]], [["g"], [], ["g"]]]


def another_root(rank):
    dist.broadcast(torch.ones(4, device="npu"), rank)


def another_operation(rank):
    operation = dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX
    dist.all_reduce(torch.ones(4, device="npu"), operation)


def _kinds(rank, name):
    with sanitizer.record() as found:
        with contextlib.suppress(RuntimeError):
            globals()[name](rank)
        torch.npu.synchronize()
    return [(f.kind, f.text) for f in found]


@pytest.mark.parametrize("name,text", [("another_root", "root 1"), ("another_operation", "MAX")])
def test_ranks_that_disagree_about_more_than_shapes(name, text, monkeypatch):
    monkeypatch.setenv("TEST_JOB_TIMEOUT", "10")
    found = [one for answer in job.run(_kinds, 2, name) for one in answer]
    assert found and {kind for kind, _ in found} == {"e"} and text in found[0][1]
