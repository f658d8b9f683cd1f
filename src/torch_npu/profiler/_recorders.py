"""Smaller sources of a profile: garbage collections of Python, mstx marks, and the host's own load."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from softnpu import _C
from torch_npu.npu._mstx import Record, subscribe, unsubscribe

Row = list[Any]
Sink = Callable[[str, list[Row]], None]


class GarbageRecorder:
    """Collections of Python's garbage that last at least `threshold` milliseconds."""

    def __init__(self, threshold: float, sink: Sink) -> None:
        self._least = threshold * 1e6
        self._sink = sink
        self._began = 0
        gc.callbacks.append(self._callback)

    def _callback(self, phase: str, info: dict[str, int]) -> None:
        now = time.time_ns()
        if phase == "start":
            self._began = now
        elif self._began and now - self._began >= self._least:
            self._sink("gc", [[os.getpid(), self._began, now, threading.get_native_id()]])

    def stop(self) -> None:
        gc.callbacks.remove(self._callback)


class MarkRecorder:
    """Marks and ranges of torch.npu.mstx in the domains that are wanted."""

    def __init__(self, include: list[str], exclude: list[str], sink: Sink) -> None:
        self._include, self._exclude, self._sink = set(include), set(exclude), sink
        self._offset = time.time_ns() - _C.device_clock_ns()
        subscribe(self._listen)

    def _listen(self, record: Record) -> None:
        if record.domain in self._exclude or (self._include and record.domain not in self._include):
            return
        start, end = record.start_ns + self._offset, record.end_ns + self._offset
        stream = None if record.stream is None else list(record.stream)
        row = [record.message, record.domain, start, end, stream, record.thread]
        self._sink("mark", [row])

    def stop(self) -> None:
        unsubscribe(self._listen)


class SystemRecorder:
    """Samples of the host's processors, memory, drives and network, from /proc, ten times a second.

    System calls (osrt) and NUMA traffic need tools of the kernel that are not used here: they have no samples.
    """

    PERIOD = 0.1

    def __init__(self, kinds: list[str], sink: Sink) -> None:
        self._readers = [(kind, _READERS[kind]) for kind in kinds if kind in _READERS]
        self._sink = sink
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="npu-host-system", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before = {kind: reader() for kind, reader in self._readers}
        last = time.time_ns()
        while not self._end.wait(self.PERIOD):
            now = time.time_ns()
            rows = []
            for kind, reader in self._readers:
                values = reader()
                rows.append([kind, now, (now - last) / 1e9, before[kind], values])
                before[kind] = values
            self._sink("system", rows)
            last = now

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


def _read(path: str) -> list[list[str]]:
    with open(path, encoding="utf-8") as file:
        return [line.split() for line in file]


def _cpu() -> list[int]:
    """Clock ticks of this process, in user mode and in the kernel."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        values = file.read().rsplit(")", 1)[1].split()
    return [int(values[11]), int(values[12])]


def _mem() -> list[int]:
    """Kilobytes of this process and of the machine."""
    own = next(int(f[1]) for f in _read("/proc/self/status") if f and f[0] == "VmRSS:")
    total = next(int(f[1]) for f in _read("/proc/meminfo") if f[0] == "MemTotal:")
    return [own, total]


def _disk() -> list[int]:
    """Bytes that this process has read from and written to drives."""
    found = {f[0]: int(f[1]) for f in _read("/proc/self/io")}
    return [found["read_bytes:"], found["write_bytes:"]]


def _network() -> list[int]:
    """Bytes that the machine has received and sent."""
    lines = _read("/proc/net/dev")[2:]
    return [sum(int(f[1]) for f in lines), sum(int(f[9]) for f in lines)]


_READERS: dict[str, Callable[[], list[int]]] = {
    "cpu": _cpu,
    "mem": _mem,
    "disk": _disk,
    "network": _network,
}
