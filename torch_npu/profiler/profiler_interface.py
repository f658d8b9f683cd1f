"""One collection: starts and stops every source of a profile, and writes its raw data. Upstream's `prof.prof_if`."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from torch_npu.npu.utils import get_cann_version
from torch_npu.profiler import _communication, _host, _rank, _raw, _tensors, _trace
from torch_npu.profiler._activity import ProfilerActivity, supported_activities
from torch_npu.profiler._memory import Watch
from torch_npu.profiler._messages import warn
from torch_npu.profiler._profiler_path_creator import ProfPathCreator
from torch_npu.profiler._watchers import GarbageWatch, MarkWatch, SystemWatch
from torch_npu.profiler.experimental_config import ProfilerLevel, _ExperimentalConfig

__all__ = ["supported_activities"]

_FLUSH = 0.5  # seconds between two writes of the device's tasks
_CUT = 1.0  # seconds of host operators that a crash may cost, if steps are shorter
_ENVIRONMENT = (
    "ASCEND_GLOBAL_LOG_LEVEL", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "ACLNN_CACHE_LIMIT", "HOST_CACHE_CAPACITY",
    "ASCEND_ENHANCE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_LAUNCH_BLOCKING", "HCCL_ALGO",
)  # fmt: skip
_MAX_TRACE_ID = 1024

_running: _ProfInterface | None = None  # there is one collection at a time in a process


class _ProfInterface:
    """Settings of a collection and its life: init, warm up, start, stop, finalize, analyse."""

    def __init__(
        self,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        schedule: Callable[[int], Any] | None = None,
        metadata: dict[str, Any] | None = None,
        experimental_config: _ExperimentalConfig | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
    ) -> None:
        self.activities = self._valid_activities(activities)
        self.record_shapes = self._flag("record_shapes", record_shapes)
        self.profile_memory = self._flag("profile_memory", profile_memory)
        self.with_stack = self._flag("with_stack", with_stack)
        self.with_flops = self._flag("with_flops", with_flops)
        self.with_modules = self._flag("with_modules", with_modules)
        self.schedule = schedule
        self.metadata = {} if metadata is None else metadata
        self.experimental_config = self._valid_config(experimental_config)
        self.custom_trace_id_callback = custom_trace_id_callback
        self.prof_path = ""
        self.trace_id = ""
        self._start_ns = 0
        self._writer: _raw.Writer | None = None
        self._host: _host.Recorder | None = None
        self._memory: Watch | None = None
        self._watchers: list[Any] = []
        self._flusher: _Flusher | None = None
        self._tensors: _tensors.Follower | None = None
        self._last_cut = 0.0

    # --- what is wanted ------------------------------------------------------------------------------

    @staticmethod
    def _flag(name: str, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        warn(f"Invalid parameter {name}: expected a bool, received {value!r}; False is used.")
        return False

    @staticmethod
    def _valid_activities(activities: Any) -> set[ProfilerActivity]:
        if not activities:
            return supported_activities()
        chosen = set(activities)
        if not chosen <= supported_activities():
            warn(f"Invalid parameter activities: {activities!r}; CPU and NPU are used.")
            return supported_activities()
        return chosen

    def _valid_config(self, config: Any) -> _ExperimentalConfig:
        if config is not None and not isinstance(config, _ExperimentalConfig):
            warn(
                "Invalid parameter experimental_config: expected an _ExperimentalConfig; the default is used."
            )
            config = None
        if config is not None and not self._npu:
            warn("experimental_config has no effect on the device without ProfilerActivity.NPU.")
        if config is not None and config.with_gc and not self._cpu:
            warn("gc_detect_threshold has no effect without ProfilerActivity.CPU.")
        return config or _ExperimentalConfig()

    @property
    def _cpu(self) -> bool:
        return ProfilerActivity.CPU in self.activities

    @property
    def _npu(self) -> bool:
        return ProfilerActivity.NPU in self.activities

    @property
    def _tasks(self) -> bool:
        return self._npu and self.experimental_config._profiler_level != ProfilerLevel.Level_none

    def _wanted(self) -> _host.Wanted:
        arguments = self.record_shapes or self.experimental_config.record_op_args
        return _host.Wanted(arguments, self.with_stack, self.with_flops, self.with_modules)

    # --- its life ------------------------------------------------------------------------------------

    def init_trace(self) -> None:
        """Makes the directory."""
        creator = ProfPathCreator()
        creator.create_prof_dir()
        self.prof_path = creator.get_prof_dir() or ""
        self._writer = _raw.Writer(self.prof_path, self._npu)
        self.trace_id = self._create_trace_id()
        self._write_info(ended=False)

    def warmup_trace(self) -> None:
        if self._cpu:
            _host.Recorder(self._wanted()).warm()

    def start_trace(self) -> None:
        global _running
        if _running is not None:
            raise RuntimeError("this process is being profiled already")
        _running = self
        try:
            self._start_sources(self._sink)
        except BaseException:
            self.stop_trace()
            raise

    def _start_sources(self, writer: _raw.Writer) -> None:
        torch.npu.init()  # type: ignore[attr-defined]
        config = self.experimental_config
        self._start_ns = time.time_ns()
        self._write_info(ended=False)
        if config.tx_enabled:
            self._watchers.append(
                MarkWatch(config._mstx_domain_include, config._mstx_domain_exclude, writer.append)
            )
        if self._cpu and config.gc_detect_threshold is not None:
            self._watchers.append(GarbageWatch(config.gc_detect_threshold, writer.append))
        if config._host_sys:
            self._watchers.append(SystemWatch(config._host_sys, writer.append))
        if self.profile_memory:
            self._memory = Watch()
            writer.append("baseline", self._memory.start())
            writer.append("block", self._memory.blocks())
        if self._tasks:
            _communication.start()
            _trace.start(config._profiler_level != ProfilerLevel.Level0)
            self._flusher = _Flusher(writer)
        if self._cpu:
            if (
                self.profile_memory
                and self.record_shapes
                and (self.with_stack or self.with_modules)
            ):
                self._tensors = _tensors.Follower()
            self._host = _host.Recorder(self._wanted())
            self._host.start()
        self._last_cut = time.monotonic()

    @property
    def _sink(self) -> _raw.Writer:
        if self._writer is None:
            raise RuntimeError("the profile has no directory: it was not started")
        return self._writer

    def note_step(self, number: int, start_ns: int, end_ns: int) -> None:
        """A step ended: write what a crash in the next one must not take away."""
        if self._writer is None or _running is not self:
            return
        self._writer.append("step", [[number, start_ns, end_ns]])
        if self._flusher is not None:
            self._flusher.flush()
        if time.monotonic() - self._last_cut >= _CUT:
            self._cut()

    def _cut(self) -> None:
        if self._host is not None:
            self._write_host(self._host, self._host.cut())
        if self._memory is not None:
            self._sink.append("memory", self._memory.take(last=False))
        self._last_cut = time.monotonic()

    def widen(self, wanted: _host.Wanted) -> None:
        """A thread that joins wants more of each operator than is recorded."""
        if self._host is None or self._host.covers(wanted):
            return
        old = self._host
        self._write_host(old, old.stop())
        self._host = _host.Recorder(old.wanted.union(wanted), old.owner)
        self._host.start()

    def _write_host(self, recorder: _host.Recorder, result: Any) -> None:
        self._sink.append("op", recorder.rows(result, self._wanted()))
        if self._tasks and not _communication.heard():
            transfers = recorder.transfers(result)
            if transfers:
                device = torch.npu.current_device()  # type: ignore[attr-defined]
                rows = _communication.from_transfers(
                    transfers, _rank.current() or 0, _rank.groups(), device
                )
                self._sink.append("communication", rows)
        if self._tensors is not None:
            for kind, rows in self._tensors.rows(result).items():
                self._sink.append(kind, rows)

    def stop_trace(self) -> None:
        global _running
        if _running is not self:
            return
        _running = None
        if self._npu:
            torch.npu.synchronize()  # type: ignore[attr-defined]
        host, result = self._host, None
        if host is not None and host.running:
            result = host.stop()
        if self._flusher is not None:
            self._flusher.stop()
            _trace.stop()
            _communication.stop()
            self._flusher.flush()
            if _trace.dropped():
                warn(
                    f"{_trace.dropped()} tasks of the device were lost: there were too many at once."
                )
        for watcher in self._watchers:
            watcher.stop()
        if self._memory is not None:
            self._sink.append("memory", self._memory.take(last=True))
        if host is not None and result is not None:
            self._write_host(host, result)
        _host.forget_child_threads()
        self._host = self._memory = self._flusher = self._tensors = None
        self._watchers = []

    def finalize_trace(self) -> None:
        """Closes the raw data and writes what is known about the whole."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._write_info(ended=True)
        if "text" in self.experimental_config.export_type:
            found = {name: os.environ.get(name, "") for name in _ENVIRONMENT}
            self.metadata["ENV_VARIABLES"] = found
        groups = _rank.groups()
        if groups:
            self.metadata["parallel_group_info"] = groups
        self.metadata["trace_id"] = self.trace_id
        _raw.write_json(Path(self.prof_path) / _raw.METADATA, self.metadata)
        self.metadata.clear()
        ProfPathCreator().is_prof_inited = False

    def delete_prof_dir(self) -> None:
        ProfPathCreator().delete_prof_dir()

    def analyse(
        self,
        analysis_type: str = "tensorboard_trace_handler",
        output_path: str | None = None,
        async_mode: bool = False,
        **options: Any,
    ) -> None:
        """Turns the raw data into result files; programs call it from their own handlers."""
        from torch_npu.profiler import _analyse

        if analysis_type == "tensorboard_trace_handler":
            _analyse.one(self.prof_path, async_mode=async_mode)
        else:
            _analyse.export(self.prof_path, analysis_type, output_path, **options)

    # --- what describes it ---------------------------------------------------------------------------

    def _create_trace_id(self) -> str:
        default = f"{uuid.uuid4().int:032X}"
        callback = self.custom_trace_id_callback
        if callback is None:
            return default
        if not callable(callback):
            warn(
                "Invalid parameter custom_trace_id_callback: it cannot be called; a random id is used."
            )
            return default
        try:
            chosen = callback()
        except (RuntimeError, ValueError, TypeError, OSError) as wrong:
            warn(f"custom_trace_id_callback raised {wrong!r}; a random id is used.")
            return default
        if isinstance(chosen, str) and len(chosen) <= _MAX_TRACE_ID:
            return chosen
        warn(
            f"custom_trace_id_callback must return a str of at most {_MAX_TRACE_ID}; a random id is used."
        )
        return default

    def _write_info(self, ended: bool) -> None:
        from torch_npu import __version__

        rank = _rank.current()
        info: dict[str, Any] = {
            "config": {
                "common_config": {
                    "activities": sorted(str(a) for a in self.activities),
                    "schedule": getattr(self.schedule, "__dict__", None) or None,
                    "record_shapes": self.record_shapes,
                    "profile_memory": self.profile_memory,
                    "with_stack": self.with_stack,
                    "with_flops": self.with_flops,
                    "with_modules": self.with_modules,
                },
                "experimental_config": vars(self.experimental_config),
            },
            "start_info": {
                "syscnt_enable": False,
                "freq": 100,
                "start_cnt": 0,
                "start_monotonic": time.monotonic_ns() - max(0, time.time_ns() - self._start_ns),
                "start_time": self._start_ns,
                "pid": os.getpid(),
            },
            "torch_npu_version": __version__,
            "cann_version": get_cann_version(),
        }
        if ended:
            info["end_info"] = {
                "collectionTimeEnd": time.time_ns(),
                "MonotonicTimeEnd": time.monotonic_ns(),
            }
        name = "profiler_info.json"
        if rank is not None:
            name = f"profiler_info_{rank}.json"
            info["rank_id"] = rank
        _raw.write_json(Path(self.prof_path) / name, info, indent=4)


def running() -> _ProfInterface | None:
    return _running


class _Flusher:
    """Writes the device's tasks while the program runs."""

    def __init__(self, writer: _raw.Writer) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="npu-profiler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(_FLUSH):
            self.flush()

    def flush(self) -> None:
        with self._lock:
            self._writer.append("task", _trace.take())
            self._writer.append("communication", _communication.take())

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
