"""The inside of `softnpu run`: what every Python process of the job notes down for the summary.

`softnpu run` puts a directory with a `sitecustomize.py` in front of PYTHONPATH, so that each Python process of the job
(the workers of torchrun too) calls `install` first. Nothing happens before the process imports torch_npu. From then
on tasks are counted, and the notes are written into that directory from time to time and at the end.
"""

from __future__ import annotations

import atexit
import collections
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from softnpu import ownership

FAULTS = "faults.json"
_MAX_BYTES = 1 << 22  # of the faults
_PERIOD = 0.5  # seconds between two notes; a process that is killed loses no more than that
_CAPACITY = 1 << 22  # tasks between two notes
_FIELDS = 9  # of a task


def install(directory: Path) -> None:
    """Waits for the import of torch_npu; called by the job's sitecustomize."""
    after_import(lambda: RunRecorder(directory).start())


def after_import(start: Callable[[], None]) -> None:
    """Calls `start` as soon as torch_npu is imported."""
    sys.meta_path.insert(0, _AfterImport(start))


class _AfterImport(MetaPathFinder):
    """Starts the recorder as soon as torch_npu is imported, and is gone then."""

    def __init__(self, start: Callable[[], None]) -> None:
        self.start = start

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch_npu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_observe(module: ModuleType) -> None:
            execute(module)
            self.start()

        spec.loader.exec_module = execute_and_observe  # type: ignore[method-assign]
        return spec


class SharedTrace:
    """The native log of tasks, which has one reader. This one stands before it: the profiler, which reads it too, gets
    what ran between its own start and stop.
    """

    def __init__(self, device: Any, shapes: bool = False) -> None:
        self.lock = threading.RLock()
        self.shapes = shapes
        self.profiling = False
        self.kept: list[tuple[Any, ...]] = []  # what the profiler has not taken yet
        self.unseen: list[tuple[Any, ...]] = []  # what this reader has not taken yet
        self.dropped = 0
        self._begin, self._end = device.trace_start, device.trace_stop
        self._native, self._lost_now = device.trace_take, device.trace_dropped
        device.trace_start = self._profiler_starts
        device.trace_stop = self._profiler_stops
        device.trace_take = self._profiler_takes
        self._open(shapes, _CAPACITY)

    def take(self) -> list[tuple[Any, ...]]:
        """The tasks since the last call."""
        with self.lock:
            self._read()
            taken, self.unseen = self.unseen, []
            return taken

    def _open(self, shapes: bool, most: int) -> None:
        self._begin(shapes, most)
        self.lost = 0

    def _read(self) -> None:
        lost = self._lost_now()  # since the log began
        self.dropped, self.lost = self.dropped + lost - self.lost, lost
        tasks = self._native()
        self.unseen += tasks
        if (
            self.profiling
        ):  # which sees collectives itself; in a plan they have a tenth value, their group
            self.kept += [task for task in tasks if len(task) == _FIELDS]

    def _profiler_starts(self, shapes: bool = False, most: int = _CAPACITY) -> None:
        with self.lock:
            self._read()
            self.profiling, self.kept = True, []
            self._open(shapes or self.shapes, most)

    def _profiler_stops(self) -> None:
        with self.lock:
            if self.profiling:
                self._end()
                self._read()
                self.profiling = False
                self._open(self.shapes, _CAPACITY)

    def _profiler_takes(self) -> list[tuple[Any, ...]]:
        with self.lock:
            if self.profiling:
                self._read()
            taken, self.kept = self.kept, []
            return taken


class RunRecorder:
    """Counts the tasks of this process, its peak memory, refused arguments and warnings."""

    def __init__(self, directory: Path) -> None:
        from softnpu import _C, settings

        self.device: Any = _C
        self.settings = settings
        self.directory = directory
        self.lock = threading.RLock()
        self.over = False
        self.reset()

    def reset(self) -> None:
        self.operators: collections.Counter[str] = collections.Counter()
        self.busy_ns: collections.Counter[str] = collections.Counter()
        self.peaks: dict[int, int] = {}
        self.errors: collections.Counter[str] = collections.Counter()
        self.warnings: collections.Counter[str] = collections.Counter()

    def start(self) -> None:
        self.trace = SharedTrace(self.device)
        self._listen()
        self.sanitizer = importlib.import_module("softnpu.sanitizer")
        self.sanitizer.report_elsewhere()
        for fault in json.loads(ownership.read_text(self.directory / FAULTS, _MAX_BYTES)):
            self._inject(dict(fault))
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._repeat, name="softnpu run", daemon=True).start()
        atexit.register(self.end)

    def _inject(self, fault: dict[str, Any]) -> None:
        rank = fault.pop("rank", None)
        if rank is None or str(rank) == os.environ.get("RANK", "0"):
            from softnpu import faults

            getattr(faults, fault.pop("call"))(**fault)

    def _forked(self) -> None:
        self.reset()
        self.trace.dropped = 0

    def _count(self) -> None:
        for name, _, _, _, _, start, end, *_ in self.trace.take():
            self.operators[name] += 1
            self.busy_ns[name] += end - start

    def _listen(self) -> None:
        """To refused arguments where the message is made, and to warnings where they are shown."""
        from torch_npu import _errors as errors

        make, show = errors.operator_error, warnings.showwarning

        def operator_error(operator: str, bad: Any) -> RuntimeError:
            self.errors[bad.text(operator)] += 1
            return make(operator, bad)

        def showwarning(
            message: Any, category: Any, filename: str, *rest: Any, **more: Any
        ) -> None:
            text = str(message)
            if "npu" in text.lower() or "torch_npu" in filename:
                self.warnings[text.splitlines()[0] if text else category.__name__] += 1
            show(message, category, filename, *rest, **more)

        errors.operator_error = operator_error
        warnings.showwarning = showwarning

    def end(self) -> None:
        self.over = True
        self.note()

    def _repeat(self) -> None:
        while True:
            time.sleep(_PERIOD)
            self.note()

    def note(self) -> None:
        """Writes what is known now; the file is replaced whole."""
        with self.lock:
            self._count()
            if self.device.started():
                machine = self.settings.visible_devices()
                for index in range(self.device.device_count()):
                    stats = self.device.memory_stats(index)
                    peak = stats["allocated_bytes"]["all"]["peak"]
                    number = machine[index]
                    if peak:
                        self.peaks[number] = max(peak, self.peaks.get(number, 0))
            notes = {
                "pid": os.getpid(),
                "rank": os.environ.get("RANK"),
                "operators": self.operators,
                "busy_ns": self.busy_ns,
                "peak_memory": self.peaks,
                "constraint_errors": self.errors,
                "warnings": self.warnings,
                "dropped": self.trace.dropped,
            }
            if self.device.sanitizer_on():
                notes["findings"] = self.sanitizer.as_json(self.over)
            target = self.directory / f"process_{os.getpid()}.json"
            idle = (
                not self.device.started()
                and not notes.get("findings")
                and not self.errors
                and not self.warnings
            )
            if idle or not self.directory.exists():
                return  # it only imported torch_npu, or the job outlived `softnpu run`, which was killed
            draft = target.with_suffix(".part")
            draft.write_text(json.dumps(notes), "utf-8")
            draft.replace(target)
