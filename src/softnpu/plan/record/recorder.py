"""The recorder of a planned process: starts with torch_npu, writes what it has at the end, and after long steps."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from softnpu import _C, _observe, chips, settings
from softnpu.plan.record.collectives import Collectives
from softnpu.plan.record.launches import Launches
from softnpu.plan.record.log import Log
from softnpu.plan.record.origins import Origins
from softnpu.plan.record.owners import Owners
from softnpu.plan.record.phases import Phases
from softnpu.plan.record.waits import follow, follow_works
from softnpu.plan.recording import STAGES, Event, Recording
from torch_npu._patch import Patches

_LIMIT = (
    1 << 46
)  # bytes of a device while planning: as good as none, and well inside the address space
_MAX = 1 << 30  # events of the allocator
_WORDS = 300  # letters of an error
_PROGRESS = 0.3  # seconds between two words on the progress
_SELDOM = 20  # parts of the time that may go into files before the end: one


class Recorder:
    """All of one process."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.pid = directory, os.getpid()
        self.patches = Patches()
        self.log = Log()
        self.owners = Owners(self.log)
        self.trace = _observe.SharedTrace(_C, shapes=True)
        self.launches = Launches(self.log, self.trace.take)
        self.origins = Origins(self.log, self.owners.module, self.launches.current)
        self.error, self.over = "", False
        self.fraction = 1.0
        self.notes: list[str] = []
        self._said = self._written = time.monotonic()
        self._took = 0.0

    def start(self) -> None:
        import torch.distributed as dist

        from torch_npu import _plan_pipelining
        from torch_npu.npu import _device
        from torch_npu.npu import _observe as launches

        self.phases = Phases(self.log, self.owners, self.patches, self.launches.flush, self._step)
        follow(self.log, self.patches, self.launches.flush)
        self.collectives: Collectives | None = None
        if dist.is_available():
            self.collectives = Collectives(self.log, self.owners, self.launches)
            follow_works(self.collectives.waited, self.patches)
        self._follow_operators()
        _plan_pipelining.share(self.directory / STAGES)
        launches.add(self._observe)
        _device._lazy_call(self._device_starts)
        self._hook = sys.excepthook
        sys.excepthook = self._failed
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.finish)

    def _device_starts(self) -> None:
        """Memory: every event with its origin, and no limit, so that the whole peak is known."""
        for device in range(_C.device_count()):
            _C.record_history(device, True, _MAX, self.origins.context, True)
            _C.set_memory_fraction(device, _LIMIT / capacity())
        self.patches.replace(_C, "record_history", self._keep_history)
        self.patches.replace(_C, "set_memory_fraction", self._set_fraction)
        self.patches.replace(_C, "memory_fraction", lambda _device: self.fraction)

    def _keep_history(self, *_args: Any) -> None:
        self._note(
            "the program records the memory's history itself; the plan's own one went on instead"
        )

    def _set_fraction(self, _device: int, fraction: float) -> None:
        self.fraction = fraction

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _follow_operators(self) -> None:
        """Arguments of torch_npu's operators that are no tensors: heads, layouts, lengths."""
        from torch_npu.ops import _registry

        def run_kernel(name: str, body: Any, values: Any, *rest: Any, **more: Any) -> Any:
            operator = _registry.operators.get(name)
            if operator is not None:
                self.launches.arguments(name, list(operator.arguments), values)
            return run(name, body, values, *rest, **more)

        def attention(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                self.launches.attention(bool(kwargs.get("is_causal", len(args) > 5 and args[5])))
            return attend(*args, **kwargs)

        run = self.patches.replace(_C, "run_kernel", run_kernel)
        owner, name = torch.nn.functional, "scaled_dot_product_attention"
        attend = self.patches.replace(owner, name, attention)

    def _observe(self, stage: int, name: str, tensors: list[Any]) -> None:
        self.launches.observe(stage, name, tensors)
        if stage and time.monotonic() - self._said > _PROGRESS:
            self._progress()

    def _progress(self) -> None:
        self._said = time.monotonic()
        if self.directory.exists():
            words = f"{self.log.steps().count} {self.log.launches}"
            (self.directory / f"progress_{self.pid}").write_text(words, "utf-8")

    def _step(self, ends: Callable[[], None]) -> None:
        """A step ends; now and then what is known so far is written, for a process that is killed."""
        self.launches.flush()
        ends()
        if time.monotonic() - self._written > max(10.0, _SELDOM * self._took):
            self.write(complete=False)

    def _failed(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        self.error = f"{kind.__name__}: {value}".split("\n", 1)[0].rstrip(": ")[:_WORDS]
        self._hook(kind, value, trace)

    def _forked(self) -> None:
        """A child has no device; its own story is not the program's."""
        self.over = True

    def finish(self) -> None:
        if self.over or os.getpid() != self.pid:
            return
        self.over = True
        self.launches.flush()
        self.log.finish()
        self.write(complete=not self.error)
        from torch_npu.npu import _observe as launches

        launches.remove(self._observe)

    def write(self, complete: bool) -> None:
        """The file of this process; nothing if it did not use the device."""
        if not _C.started() or not self.directory.exists():
            return
        begin = time.monotonic()
        device = max(range(_C.device_count()), key=lambda i: _peak(i, "allocated_bytes"))
        groups = self.collectives.sizes if self.collectives is not None else {}
        Recording(
            rank=int(os.environ.get("RANK", "0")),
            ranks=int(os.environ.get("WORLD_SIZE", "1")),
            device=device,
            tasks=self.log.step_tasks(),
            events=[_event(event) for event in _C.memory_history(device)],
            origins=self.origins.table,
            marks=self.owners.marks,
            backwards=self.phases.backwards,
            steps=self.log.steps(),
            capacity=int(capacity() * min(1.0, self.fraction)),
            peak_allocated=_peak(device, "allocated_bytes"),
            peak_reserved=_peak(device, "reserved_bytes"),
            groups=[(len(ranks), size) for ranks, size in groups.items()],
            launches=self.log.launches,
            complete=complete,
            error=self.error,
            notes=self.notes,
        ).write(self.directory / f"process_{self.pid}.json")
        self._written = time.monotonic()
        self._took = self._written - begin


def capacity() -> int:
    """Bytes of a device: the chip's, or what SOFTNPU_MEMORY says."""
    return settings.current().memory or chips.current().memory


def _peak(device: int, what: str) -> int:
    return _C.memory_stats(device)[what]["all"]["peak"]


def _event(event: dict[str, Any]) -> Event:
    return Event(event["action"], event.get("addr", 0), event["size"], *event["frames"])
