"""Strangers at the ports of a job, and Ctrl-C in the middle of a collective. All on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_npu  # noqa: F401
from tests.distributed import job


def listening_ports() -> set[int]:
    """The TCP ports on which this process listens."""
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(entry)
            if target.startswith("socket:["):
                own.add(target[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


RUBBISH = [
    b"",
    b"\0" * 64,
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    (2**63 - 1).to_bytes(8, "little") * 8,
    random.Random(0).randbytes(10_000),
]


def disturb(ports: set[int], stop: threading.Event) -> int:
    """Connects, sends rubbish, resets or keeps the connection; a bounded number of times."""
    kept, times = [], 0
    for number in range(60):
        if stop.is_set():
            break
        for port in ports:
            with contextlib.suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", port), 0.5)
                times += 1
                stranger.settimeout(0.5)
                stranger.sendall(RUBBISH[number % len(RUBBISH)])
                if number % 3 == 0:
                    kept.append(stranger)
                else:
                    stranger.close()
        time.sleep(0.02)
    for stranger in kept:
        stranger.close()
    return times


def works_beside_strangers(rank: int) -> int:
    """Collectives and new groups (whose ranks connect while strangers do) give the right results."""
    tensor = torch.ones(1000, device="npu")
    dist.all_reduce(tensor)
    stop, times = threading.Event(), []
    thread = threading.Thread(target=lambda: times.append(disturb(listening_ports(), stop)))
    thread.start()
    for step in range(20):
        value = torch.full((5000,), float(rank + step), device="npu")
        dist.all_reduce(value)
        assert value.eq(2 * step + 1).all()
        parts = [torch.empty(10, device="npu") for _ in range(2)]
        dist.all_gather(parts, torch.full((10,), float(rank), device="npu"))
        assert [p[0].item() for p in parts] == [0, 1]
    thread.join()
    group = dist.new_group([0, 1])
    value = torch.ones(3, device="npu")
    dist.all_reduce(value, group=group)
    assert value.tolist() == [2, 2, 2]
    return times[0]


def test_rubbish_at_the_ports():
    times = job.run(works_beside_strangers, 2)
    assert sum(times) > 20, "no port was disturbed"


def interrupted(rank: int, folder: str) -> str:
    """Rank 0 waits in a collective that rank 1 does not join, and is interrupted."""
    tensor = torch.ones(4, device="npu")
    dist.all_reduce(tensor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 1:
        while not Path(folder, "interrupted").exists():
            time.sleep(0.05)
        return ""
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        dist.all_reduce(tensor)
        raise AssertionError("nobody joined, but it ended")
    except (KeyboardInterrupt, RuntimeError) as error:
        return f"{type(error).__name__} {time.monotonic() - began:.1f}"
    finally:
        Path(folder, "interrupted").touch()


def test_an_interrupt_ends_a_collective(tmp_path):
    answer, _ = job.run(interrupted, 2, str(tmp_path), env={"HCCL_EXEC_TIMEOUT": "8"})
    kind, took = answer.split()
    assert kind in ("KeyboardInterrupt", "DistBackendError") and float(took) < 12


@pytest.fixture(autouse=True)
def _no_leftovers():
    yield
    assert threading.active_count() < 20
