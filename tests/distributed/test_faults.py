"""What the other ranks see when one dies, hangs or cannot be reached."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_npu  # noqa: F401
from tests.distributed import job

LIMIT = 20


def loses_a_rank(rank: int, folder: str, kind: str) -> str:
    """Rank 1 kills itself in the middle of the job; the others must be told, and by which operation."""
    tensor = torch.ones(1 << 16, device="npu")
    dist.all_reduce(tensor)
    if rank == 1:
        Path(folder, "pid").write_text(str(os.getpid()))
        work = dist.all_reduce(tensor, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
        work.wait()
    try:
        for _ in range(1000):
            if kind == "all_reduce":
                dist.all_reduce(tensor)
            else:
                dist.recv(tensor, 1)
    except RuntimeError as error:
        try:
            dist.all_reduce(tensor)
        except RuntimeError as later:
            return f"{type(error).__name__}|{error}|{later}"
    raise AssertionError("the loss of a rank went unnoticed")


@pytest.mark.parametrize("kind", ["all_reduce", "recv"])
def test_a_killed_rank(tmp_path, kind):
    ranks = 3 if kind == "all_reduce" else 2
    started = job.start(
        loses_a_rank, ranks, str(tmp_path), kind, env={"HCCL_EXEC_TIMEOUT": str(LIMIT)}
    )
    try:
        answers = [started[r].result(90) for r in range(ranks) if r != 1]
        assert started[1].process.wait(10) == -signal.SIGKILL
        assert [rank.process.poll() for rank in started].count(None) == 0
    finally:
        job.stop(started)
    for answer in answers:
        name, text, later = answer.split("|", 2)
        assert (
            name == "DistBackendError" and "HCCL_EXEC_TIMEOUT" not in text
        )  # noticed, not timed out
        assert f"HCCL {kind}" in text and "rank 1" in text and "is gone" in text
        assert "ERR02200 DIST call hccl api failed" in text
        assert "cannot be used" in later


def waits_in_vain(rank: int, folder: str) -> str:
    """Rank 1 does not take part: nobody dies, so only the timeout helps."""
    tensor = torch.ones(4, device="npu")
    dist.all_reduce(tensor)
    told = Path(folder, "told")
    if rank == 1:
        while not told.exists():
            time.sleep(0.05)
        return ""
    with pytest.raises(
        RuntimeError, match="(?s)HCCL all_reduce .*rank 1.*does not answer"
    ) as caught:
        dist.all_reduce(tensor)
    told.touch()
    return str(caught.value)


def test_a_hanging_rank(tmp_path):
    text = job.run(waits_in_vain, 2, str(tmp_path), env={"HCCL_EXEC_TIMEOUT": "4"})[0]
    assert "HCCL_EXEC_TIMEOUT" in text and "ERR02011 DIST timeout error" in text


def patience(rank: int) -> None:
    """A caller's own limit is not the group's: the operation goes on."""
    tensor = torch.ones(4, device="npu")
    if rank == 1:
        time.sleep(2)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        with pytest.raises(RuntimeError, match="HCCL all_reduce: it did not end within 300 ms"):
            work.wait(timedelta(milliseconds=300))
    work.wait()
    assert tensor[0].item() == 2


def test_a_callers_patience():
    job.run(patience, 2)


def leaves(rank: int, folder: str, kind: str) -> str:
    """Rank 1 is killed; rank 2 notices, and leaves because of it; the others must name rank 1 nevertheless."""
    tensor = torch.ones(64, device="npu")
    pair = dist.new_group([0, 2])
    dist.all_reduce(tensor)
    if rank in (0, 2):
        dist.all_reduce(tensor, group=pair)
    if rank == 1:
        Path(folder, "pid").write_text(str(os.getpid()))
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        with pytest.raises(dist.DistBackendError, match="rank 1 .pid .* is gone"):
            dist.all_reduce(tensor)
        Path(folder, "left").touch()
        os._exit(0)
    end = time.monotonic() + 30
    while not Path(folder, "left").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.3)  # until rank 2 has gone too
    with pytest.raises(dist.DistBackendError) as caught:
        if kind == "pair" and rank == 0:
            dist.all_reduce(tensor, group=pair)
        elif kind == "recv":
            dist.recv(tensor, 2)
        elif kind == "send":
            for _ in range(20):  # the first ones go to buffers of the system
                dist.send(tensor, 2)
        else:
            dist.all_reduce(tensor)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["world", "pair", "recv", "send"])
def test_a_rank_that_leaves_because_of_another_one(tmp_path, kind):
    started = job.start(leaves, 4, str(tmp_path), kind, env={"HCCL_EXEC_TIMEOUT": str(LIMIT)})
    try:
        answers = [started[rank].result(90) for rank in (0, 3)]
    finally:
        job.stop(started)
    pid = Path(tmp_path, "pid").read_text()
    for text in answers:
        assert f"rank 1 (pid {pid}) is gone" in text
        assert "HCCL " in text and "ERR02200" in text
