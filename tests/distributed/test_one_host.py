"""Collectives among processes of one host: pieces larger than a slot of the shared memory, and ranks that disagree."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_npu  # noqa: F401
from tests.distributed import job

#: elements; beyond what fits into a slot at once, and no multiple of anything
LARGE = 1_300_003


def numbers(rank: int, dtype: torch.dtype, count: int = LARGE) -> torch.Tensor:
    """What a rank holds: small whole numbers, which every order of additions sums alike."""
    return ((torch.arange(count) * (rank + 3)) % 7 - 2).to(dtype)


def large(rank: int) -> None:
    n = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.int16):
        every = torch.stack([numbers(r, dtype).double() for r in range(n)])
        for op, expected in (
            (dist.ReduceOp.SUM, every.sum(0)),
            (dist.ReduceOp.MAX, every.amax(0)),
            (dist.ReduceOp.PRODUCT, every.prod(0)),
        ):
            x = numbers(rank, dtype).npu()
            dist.all_reduce(x, op)
            assert torch.equal(x.cpu(), expected.to(dtype)), (dtype, op)
        x = numbers(rank, dtype).npu()
        dist.reduce(x, n - 1)
        assert torch.equal(
            x.cpu(), every.sum(0).to(dtype) if rank == n - 1 else numbers(rank, dtype)
        )
        whole = torch.empty(n * LARGE, dtype=dtype, device="npu")
        dist.all_gather_into_tensor(whole, numbers(rank, dtype).npu())
        assert torch.equal(whole.cpu(), every.flatten().to(dtype))
        x = numbers(rank, dtype).npu()
        dist.broadcast(x, 1)
        assert torch.equal(x.cpu(), numbers(1, dtype))


def rounds_once(rank: int) -> None:
    """The sum of bfloat16 on all ranks is that of fp32, rounded once: of three ranks 256 + 1 + 1 is 258."""
    x = torch.full((5000,), 256.0 if rank == 0 else 1.0, dtype=torch.bfloat16, device="npu")
    dist.all_reduce(x)
    exact = torch.tensor(255.0 + dist.get_world_size(), dtype=torch.bfloat16)
    assert x.tolist() == [exact.item()] * 5000


def exchanged(rank: int) -> None:
    """Uneven parts, some empty, some of several rounds."""
    n = dist.get_world_size()
    size = lambda source, target: ((source * n + target) % 4) * 600_001  # noqa: E731
    send = [size(rank, r) for r in range(n)]
    receive = [size(r, rank) for r in range(n)]
    parts = [numbers(rank * n + r, torch.float32, count) for r, count in enumerate(send)]
    output = torch.empty(sum(receive), device="npu")
    dist.all_to_all_single(output, torch.cat(parts).npu(), receive, send)
    expected = [numbers(r * n + rank, torch.float32, count) for r, count in enumerate(receive)]
    assert torch.equal(output.cpu(), torch.cat(expected))


def in_order(rank: int) -> None:
    """Operations that nobody waits for in between end as if they had been waited for."""
    tensors = [
        torch.full((1 + 300_000 * (i % 2),), float(i + rank), device="npu") for i in range(40)
    ]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for i, (x, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        n = dist.get_world_size()
        assert x[0].item() == x[-1].item() == n * i + n * (n - 1) / 2


def inference(rank: int) -> None:
    n = dist.get_world_size()
    with torch.inference_mode():
        x = torch.full((3,), float(rank), device="npu")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert x.tolist() == [(n - 1) / 2] * 3


def everything(rank: int) -> None:
    for part in (large, rounds_once, exchanged, in_order, inference):
        part(rank)


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_host(ranks):
    job.run(everything, ranks)


def disagreement(rank: int, kind: str) -> str:
    try:
        if kind == "size":
            dist.all_reduce(torch.ones(4 + rank, device="npu"))
        elif kind == "reduction":
            op = dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX
            dist.all_reduce(torch.ones(4, device="npu"), op)
        elif kind == "operation" and rank == 0:
            dist.all_reduce(torch.ones(4, device="npu"))
        elif kind == "operation":
            dist.broadcast(torch.ones(4, device="npu"), 0)
        else:
            splits = [1, 3] if rank == 0 else [2, 2]
            dist.all_to_all_single(
                torch.ones(4, device="npu"), torch.ones(4, device="npu"), splits, [2, 2]
            )
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("size", ["do not agree", "16 bytes", "20 bytes"]),
        ("reduction", ["do not agree", "all_reduce of 16 bytes of Float by SUM", "by MAX"]),
        ("operation", ["do not agree", "broadcast of 16 bytes, root 0", "all_reduce of 16"]),
        ("split", ["rank 0 sends 8 bytes to rank 0, which expects 4"]),
    ],
)
def test_ranks_that_disagree_are_told(kind, words):
    """The card would hang."""
    answers = job.run(disagreement, 2, kind)
    assert all(word in answers[0] for word in words), answers
    assert "ERR02200 DIST call hccl api failed" in answers[0]
    if kind != "split":
        assert all(word in answers[1] for word in words), answers
