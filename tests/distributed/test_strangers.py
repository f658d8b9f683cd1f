"""Strangers at the ports of a job, on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import random
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


def forms_beside_strangers(rank: int) -> int:
    """Groups whose ranks look for each other while others knock at every new port."""
    stop, times = threading.Event(), []

    def knock() -> None:
        while not stop.is_set():
            for port in listening_ports():
                with contextlib.suppress(OSError):
                    stranger = socket.create_connection(("127.0.0.1", port), 0.5)
                    stranger.sendall(RUBBISH[len(times) % len(RUBBISH)][:256])
                    times.append(stranger)  # stays open
            if len(times) > 200:
                times.pop(0).close()

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        for step in range(6):
            group = dist.new_group([0, 1])
            value = torch.full((100,), float(rank + step), device="npu")
            dist.all_reduce(value, group=group)
            assert value.eq(2 * step + 1).all()
    finally:
        stop.set()
        thread.join()
    for stranger in times:
        stranger.close()
    return len(times)


def test_groups_form_beside_strangers():
    times = job.run(forms_beside_strangers, 2, env={"HCCL_CONNECT_TIMEOUT": "30"})
    assert sum(times) > 5, "no port was disturbed"


@pytest.fixture(autouse=True)
def _no_leftovers():
    yield
    assert threading.active_count() < 20
