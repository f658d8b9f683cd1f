"""The host's side of a profile: operators, annotations and Python calls, from PyTorch's own profiler.

Kineto runs for all threads; rows of Python threads that did not ask for it (`enable_profiler_in_child_thread`) are left
out, as on the card. `cut` ends one recording and begins the next, so that a long run is written piece by piece.
"""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch._C._profiler import ProfilerActivity as _Activity
from torch._C._profiler import ProfilerConfig, ProfilerState
from torch._C._profiler import _ExperimentalConfig as _KinetoConfig

from softnpu import torch_versions
from torch_npu.profiler import _rank

Row = list[Any]

FIELDS = (
    "name", "start_ns", "end_ns", "thread", "sequence", "forward_thread", "scope", "kind", "shapes", "dtypes",
    "stack", "flops", "attributes",
)  # fmt: skip
_ACTIVITIES = {_Activity.CPU}
_autograd = torch._C._autograd


@dataclass(frozen=True)
class Wanted:
    """What is kept of each operator."""

    shapes: bool = False
    stack: bool = False
    flops: bool = False
    modules: bool = False
    attributes: bool = False

    def union(self, other: Wanted) -> Wanted:
        return Wanted(*(getattr(self, f.name) or getattr(other, f.name) for f in fields(Wanted)))


@dataclass
class _Window:
    """When a Python thread other than the profiler's own was profiled, and what of it is kept."""

    wanted: Wanted
    start_ns: int
    end_ns: int | None = None


_lock = threading.Lock()
_windows: dict[int, list[_Window]] = {}  # by the operating system's id of the thread


def enable_in_child_thread(wanted: Wanted) -> None:
    """From now on, operators of the calling thread are part of the profile that is collected."""
    with _lock:
        _windows.setdefault(threading.get_native_id(), []).append(_Window(wanted, time.time_ns()))


def disable_in_child_thread() -> None:
    with _lock:
        windows = _windows.get(threading.get_native_id(), [])
        if windows and windows[-1].end_ns is None:
            windows[-1].end_ns = time.time_ns()


def forget_child_threads() -> None:
    """Windows that have ended are of no use to the next profile."""
    with _lock:
        for thread in list(_windows):
            _windows[thread] = [w for w in _windows[thread] if w.end_ns is None]
            if not _windows[thread]:
                del _windows[thread]


def _window(thread: int, start_ns: int) -> _Window | None:
    for window in _windows.get(thread, ()):
        if window.start_ns <= start_ns and (window.end_ns is None or start_ns <= window.end_ns):
            return window
    return None


class Recorder:
    """One run of PyTorch's profiler."""

    def __init__(self, wanted: Wanted, owner: int | None = None) -> None:
        """`owner` is the thread that profiles, the calling one by default."""
        self.wanted = wanted
        self.owner = threading.get_native_id() if owner is None else owner
        self._config = ProfilerConfig(
            ProfilerState.KINETO,
            wanted.shapes
            or wanted.flops
            or wanted.attributes
            or _rank.distributed(),  # volumes of communication need shapes
            False,  # device memory is read from the device's own history
            wanted.stack,
            wanted.flops,
            wanted.modules,
            _KinetoConfig(profile_all_threads=True, verbose=wanted.stack),
        )
        self.running = False
        self._python: set[int] = set()

    def warm(self) -> None:
        """Kineto's first start costs milliseconds: pay before the steps that count."""
        self.start()
        self.stop()

    def start(self) -> None:
        _autograd._prepare_profiler(self._config, _ACTIVITIES)
        _autograd._enable_profiler(self._config, _ACTIVITIES)
        self.running = True

    def stop(self) -> Any:
        self._see_threads()
        self.running = False
        return _autograd._disable_profiler()

    def cut(self) -> Any:
        """What was recorded until now; recording goes on."""
        result = self.stop()
        self.start()
        return result

    def covers(self, wanted: Wanted) -> bool:
        return all(
            getattr(self.wanted, f.name) or not getattr(wanted, f.name) for f in fields(Wanted)
        )

    def _see_threads(self) -> None:
        """Threads that Python started are known only while they live.

        A thread of autograd's that ran Python code is in Python's list too, as a dummy.
        """
        self._python |= {
            t.native_id
            for t in threading.enumerate()
            if t.native_id is not None and not isinstance(t, threading._DummyThread)
        }
        self._python.discard(self.owner)

    @staticmethod
    def transfers(result: Any) -> list[Row]:
        """What the network library under a collective did: name, start, end, thread, shapes, data types."""
        return [
            [
                e.name().removeprefix(_GLOO),
                e.start_ns(),
                e.end_ns(),
                e.device_resource_id(),
                e.shapes(),
                e.dtypes(),
            ]
            for e in result.events()
            if e.name().startswith(_GLOO)
        ]

    def _autograd_threads(self, events: list[Any]) -> set[int]:
        """Threads of the autograd engine; they are none of Python's."""
        found = {e.device_resource_id() for e in events if e.name().startswith(_ENGINE)}
        return found - self._python

    def rows(self, result: Any, main: Wanted) -> list[Row]:
        """`main` is what is kept of the profiler's own thread and of autograd's."""
        rows = []
        events = torch_versions.recorded(result, self.wanted.stack or self.wanted.modules)
        own = {self.owner} | self._autograd_threads(events)
        for event in events:
            kind = _KINDS.get(torch_versions.activity(event))
            if kind is None or event.name().startswith(_GLOO):
                continue
            thread, start, wanted = event.device_resource_id(), event.start_ns(), main
            if thread not in own:
                window = _window(thread, start)
                if window is None:
                    continue
                wanted = window.wanted
            if kind == "python" and not (thread and (wanted.stack or wanted.modules)):
                continue  # thread 0 is one that the tracer does not know
            rows.append([
                event.name(), start, event.end_ns(), thread, event.sequence_nr(),
                event.fwd_thread_id(), event.scope(), kind,
                event.shapes() if wanted.shapes else None,
                event.dtypes() if wanted.shapes else None,
                event.stack() if wanted.stack else None,
                event.flops() if wanted.flops else 0,
                _attributes(event) if wanted.attributes and kind == "op" else None,
            ])  # fmt: skip
        return rows


@functools.cache
def _argument_names(operator: str, count: int) -> list[str]:
    """Names of an operator's arguments; numbers if none of its forms takes so many."""
    for schema in torch._C._jit_get_schemas_for_operator(operator):
        if len(schema.arguments) == count:
            return [argument.name for argument in schema.arguments]
    return [str(number) for number in range(count)]


def _attributes(event: Any) -> str:
    """The operator's arguments that are no tensors, as `name:value` by semicolons."""
    values = event.concrete_inputs()
    names = _argument_names(event.name(), len(values))
    pairs = zip(names, values, strict=True)
    return ";".join(f"{name}:{value}" for name, value in pairs if value not in ("", None))


_GLOO = "gloo:"
_ENGINE = "autograd::engine::evaluate_function"
_KINDS = {"cpu_op": "op", "user_annotation": "user", "python_function": "python"}
