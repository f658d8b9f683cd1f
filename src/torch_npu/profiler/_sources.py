"""What is recorded between the start and the stop of a collection: every source of a profile, each into the raw files."""

from __future__ import annotations

import threading
import time
from dataclasses import astuple, dataclass
from typing import Any

import torch

from torch_npu.profiler import (
    _collectives,
    _communication,
    _facts,
    _host,
    _rank,
    _raw,
    _tensors,
    _trace,
)
from torch_npu.profiler._memory import MemoryRecorder
from torch_npu.profiler._messages import warn
from torch_npu.profiler._recorders import GarbageRecorder, MarkRecorder, SystemRecorder
from torch_npu.profiler.experimental_config import ProfilerLevel, _ExperimentalConfig

_FLUSH = 0.5  # seconds between two writes of the device's tasks
_CUT = 1.0  # seconds of host operators that a crash may cost, if steps are shorter


@dataclass(frozen=True)
class Choice:
    """Which sources a collection has."""

    host: bool
    tasks: bool
    memory: bool
    tensors: bool  # which storages are parameters, gradients, states
    wanted: _host.Wanted
    config: _ExperimentalConfig


class Sources:
    """The sources of one collection; started once, stopped once."""

    def __init__(self, writer: _raw.Writer, choice: Choice) -> None:
        self._writer, self._choice = writer, choice
        self._host: _host.Recorder | None = None
        self._memory: MemoryRecorder | None = None
        self._others: list[Any] = []
        self._flusher: _Flusher | None = None
        self._tensors: _tensors.Follower | None = None
        self._collectives: _collectives.CollectiveRecorder | None = None
        self._last_cut = 0.0

    def start(self) -> None:
        choice, config, append = self._choice, self._choice.config, self._writer.append
        if config.tx_enabled:
            domains = config._mstx_domain_include, config._mstx_domain_exclude
            self._others.append(MarkRecorder(*domains, append))
        if choice.host and config.gc_detect_threshold is not None:
            self._others.append(GarbageRecorder(config.gc_detect_threshold, append))
        if config._host_sys:
            self._others.append(SystemRecorder(config._host_sys, append))
        if choice.memory:
            self._memory = MemoryRecorder()
            append("baseline", self._memory.start())
            append("block", self._memory.blocks())
        if choice.tasks:
            if _rank.available():
                self._collectives = _collectives.CollectiveRecorder()
            _trace.start(config._profiler_level != ProfilerLevel.Level0)
            self._flusher = _Flusher(self._writer)
        if choice.host:
            if choice.tensors:
                self._tensors = _tensors.Follower()
            self._host = _host.Recorder(choice.wanted)
            self._host.start()
        self._last_cut = time.monotonic()

    def step(self, number: int, start_ns: int, end_ns: int) -> None:
        """A step ended: write what a crash in the next one must not take away."""
        self._writer.append("step", [[number, start_ns, end_ns]])
        if self._flusher is not None:
            self._flusher.flush()
        if time.monotonic() - self._last_cut >= _CUT:
            self._write_host(self._host, self._host.cut() if self._host is not None else None)
            if self._memory is not None:
                self._writer.append("memory", self._memory.take(last=False))
            self._last_cut = time.monotonic()

    def widen(self, wanted: _host.Wanted) -> None:
        """A thread that joins wants more of each operator than is recorded."""
        old = self._host
        if old is None or old.covers(wanted):
            return
        self._write_host(old, old.stop())
        self._host = _host.Recorder(old.wanted.union(wanted), old.owner)
        self._host.start()

    def stop(self) -> None:
        host, result = self._host, None
        if host is not None and host.running:
            result = host.stop()
        if self._collectives is not None:
            self._collectives.stop()
        if self._flusher is not None:
            self._flusher.stop()
            _trace.stop()
            self._flusher.flush()
            if _trace.dropped():
                warn(
                    f"{_trace.dropped()} tasks of the device were lost: there were too many at once."
                )
        for recorder in self._others:
            recorder.stop()
        if self._memory is not None:
            self._writer.append("memory", self._memory.take(last=True))
        self._write_host(host, result, last=True)
        _host.forget_child_threads()

    def _write_host(self, recorder: _host.Recorder | None, result: Any, last: bool = False) -> None:
        transfers: list[Any] = []
        if recorder is not None and result is not None:
            self._writer.append("op", recorder.rows(result, self._choice.wanted))
            transfers = recorder.transfers(result)
            if self._tensors is not None:
                for kind, rows in self._tensors.rows(result).items():
                    self._writer.append(kind, rows)
        if self._choice.tasks:
            self._writer.append("communication", self._communications(transfers, last))

    def _communications(self, transfers: list[Any], last: bool) -> list[Any]:
        """Collectives with their groups; what the network did for none of them is told too."""
        called: list[_communication.Communication] = []
        if self._collectives is not None:
            called, transfers = self._collectives.take(transfers, last)
        rows: list[Any] = [list(astuple(one)) for one in called]
        if transfers:
            device = torch.npu.current_device()  # type: ignore[attr-defined]
            rank, groups = _rank.current() or 0, _rank.groups()
            rows += _communication.from_transfers(transfers, rank, groups, device)
        return rows


class _Flusher:
    """Writes the device's tasks while the program runs."""

    def __init__(self, writer: _raw.Writer) -> None:
        self._writer = writer
        self._named: set[str] = set()  # operators whose kernels are written
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="npu-profiler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(_FLUSH):
            try:
                self.flush()
            except OSError as wrong:  # the disk is full, or somebody has removed the directory
                warn(f"Tasks of the device are not written any more: {wrong}.")
                return

    def flush(self) -> None:
        with self._lock:
            rows = _trace.take()
            fresh = {row[0] for row in rows} - self._named
            self._named |= fresh
            self._writer.append("kernel", [[name, *_facts.kernel(name)] for name in sorted(fresh)])
            self._writer.append("task", rows)

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
