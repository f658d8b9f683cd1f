"""Ctrl-C, and other signals that Python handles, while a rank waits for others."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job


def replayed(x: torch.Tensor) -> None:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        dist.all_reduce(x)
    graph.replay()
    torch.npu.synchronize()


def on_two_threads(x: torch.Tensor) -> None:
    """The other thread waits too, and is told."""
    said: list[str] = []

    def other() -> None:
        try:
            dist.recv(torch.ones(4, device="npu"), 1)
        except dist.DistBackendError as error:
            said.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        dist.recv(x, 1, tag=1)
    except KeyboardInterrupt:
        thread.join(60)
        assert said and "was interrupted in recv" in said[0]
        raise


#: what waits for a rank that does not come
WAITS = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "async": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "recv": lambda x: dist.recv(x, 1),
    "barrier": lambda x: dist.barrier(),
    "batch": lambda x: [
        w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)])
    ],
    "send": lambda x: [dist.send(torch.ones(1 << 22, device="npu"), 1) for _ in range(200)],
    "objects": lambda x: dist.all_gather_object([None, None], 1),
    "replay": replayed,
    "threads": on_two_threads,
    "monitored_barrier": lambda x: dist.monitored_barrier(),
}  # fmt: skip


def signal_after(seconds: float, number: int = signal.SIGINT) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), number)).start()


def until(path: Path) -> None:
    end = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.05)


def interrupted(rank: int, folder: str, kind: str) -> tuple[str, float, str, float]:
    """Rank 0 waits for rank 1, is interrupted, and uses the group again."""
    tensor = torch.ones(4, device="npu")
    dist.all_reduce(tensor)
    if rank == 1:
        until(Path(folder, "interrupted"))
        return "", 0, "", 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal_after(0.5)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        WAITS[kind](tensor)
    took = time.monotonic() - began - 0.5
    with pytest.raises(dist.DistBackendError) as later:
        dist.all_reduce(tensor)
    began = time.monotonic()
    dist.destroy_process_group()
    ended = time.monotonic() - began
    Path(folder, "interrupted").touch()
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)  # for the end
    return kind, took, str(later.value), ended


@pytest.mark.parametrize("kind", WAITS)
def test_an_interrupt_ends_a_wait_at_once(tmp_path, kind):
    (kind, took, text, ended), _ = job.run(interrupted, 2, str(tmp_path), kind)
    assert took < (1 if kind != "threads" else 30) and ended < 2
    if kind == "monitored_barrier":  # gloo's own, of which the group knows the end alone
        assert "cannot be used, since it was aborted on rank 0" in text
        return
    assert "cannot be used, since it was aborted: rank 0 (pid " in text
    assert ") was interrupted in " in text


def others(rank: int) -> str:
    """Rank 0 is interrupted while ranks 1 and 2 wait too: they are told."""
    tensor = torch.ones(4, device="npu")
    dist.all_reduce(tensor)
    if rank == 2:
        time.sleep(3)
    elif rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal_after(0.3)
    try:
        for _ in range(2):  # the first one of rank 2 may still get what the others had sent
            dist.all_reduce(tensor)
    except KeyboardInterrupt:
        time.sleep(5)  # it lives on, and does nothing more in the group
        return ""
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("the interrupt went unnoticed")


def test_the_other_ranks_are_told_who_was_interrupted():
    _, one, two = job.run(others, 3)
    for text in (one, two):
        assert "rank 0 (pid " in text and "was interrupted in all_reduce" in text


def handled(rank: int) -> float:
    """A handler that raises nothing: the operation goes on."""
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(len(seen)))
    tensor = torch.ones(4, device="npu")
    if rank == 1:
        time.sleep(1.5)
        dist.send(tensor, 0)
        time.sleep(1.0)
    else:
        signal_after(0.3, signal.SIGUSR1)
        dist.recv(tensor, 1)
        assert seen == [0]
        signal_after(0.3, signal.SIGUSR1)
    dist.all_reduce(tensor)
    assert len(seen) == (2 if rank == 0 else 0)
    return tensor[0].item()


def test_a_signal_that_is_handled_disturbs_nothing():
    assert job.run(handled, 2) == [2, 2]


def made_anew(rank: int, folder: str) -> float:
    tensor = torch.ones(4, device="npu")
    dist.all_reduce(tensor)
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal_after(0.2)
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(tensor)
        Path(folder, "interrupted").touch()
    until(Path(folder, "interrupted"))
    torch_npu.distributed.reinit_process_group()
    value = torch.full((4,), rank + 1.0, device="npu")
    dist.all_reduce(value)
    return value[0].item()


def test_the_group_can_be_made_anew(tmp_path):
    assert job.run(made_anew, 2, str(tmp_path)) == [3, 3]


def program(rank: int, ranks: int, folder: str) -> None:
    """As a program that knows nothing of signals."""
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", **job.store_options(folder, rank, ranks))
    tensor = torch.ones(4, device="npu")
    dist.all_reduce(tensor)
    Path(folder, f"ready{rank}").touch()
    if rank == 1:
        time.sleep(300)
    dist.all_reduce(tensor)


@pytest.mark.slow
def test_a_program_ends_after_ctrl_c():
    started = job.start(program, 2, group=False, fresh=True)
    try:
        for rank in range(2):
            until(started[0].answer.with_name(f"ready{rank}"))
        time.sleep(0.5)
        os.kill(started[0].process.pid, signal.SIGINT)
        started[0].process.wait(20)  # the operation's own timeout is half an hour
        with pytest.raises(AssertionError, match="KeyboardInterrupt"):
            started[0].result(1)
    finally:
        job.stop(started)


class Slow(torch.autograd.Function):
    """Rank 1 comes late to the reduction of the gradients: after the file is there."""

    @staticmethod
    def forward(ctx, x, folder):
        ctx.folder = folder
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if dist.get_rank() == 1:
            until(Path(ctx.folder, "goes on"))
        return grad, None


def in_backward(rank: int, folder: str, how: str) -> tuple[float, str]:
    """DistributedDataParallel: the reduction runs on a thread of autograd."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).npu())
    loss = Slow.apply(model(torch.ones(2, 4, device="npu")), folder).sum()
    seen: list[int] = []
    if rank == 0:
        handler = signal.default_int_handler if how == "raises" else lambda *_: seen.append(1)
        signal.signal(signal.SIGINT, handler)
        signal_after(0.5)
        if how != "raises":
            threading.Timer(2.0, Path(folder, "goes on").touch).start()
    began, text = time.monotonic(), ""
    try:
        try:
            loss.backward()
        except dist.DistBackendError as error:
            text = str(error)
            time.sleep(20)  # the interrupt takes effect here at the latest
    except KeyboardInterrupt:
        text = text or "KeyboardInterrupt"
    took = time.monotonic() - began
    Path(folder, "goes on").touch()
    if how != "raises":
        assert seen == ([1] if rank == 0 else []) and not text
        assert next(model.parameters()).grad is not None
    return took, text


def test_an_interrupt_ends_a_backward_pass(tmp_path):
    (took, text), _ = job.run(in_backward, 2, str(tmp_path), "raises")
    assert took < 15 and ("was interrupted in all_reduce" in text or text == "KeyboardInterrupt")


def test_a_handler_that_raises_nothing_does_not_end_a_backward_pass(tmp_path):
    (took, text), _ = job.run(in_backward, 2, str(tmp_path), "goes on")
    assert text == "" and took > 1
