"""One collection: what is wanted, and its life from the directory to the result files. Upstream's `prof.prof_if`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from torch_npu.profiler import _host, _identity, _rank, _raw
from torch_npu.profiler._activity import ProfilerActivity, supported_activities
from torch_npu.profiler._messages import warn
from torch_npu.profiler._profiler_path_creator import ProfPathCreator
from torch_npu.profiler._sources import Choice, Sources
from torch_npu.profiler.experimental_config import ProfilerLevel, _ExperimentalConfig

__all__ = ["supported_activities"]

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
        self._sources: Sources | None = None

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
        attributes = self._tasks and self.experimental_config._op_attr
        return _host.Wanted(
            arguments, self.with_stack, self.with_flops, self.with_modules, attributes
        )

    def _choice(self) -> Choice:
        followed = self.with_stack or self.with_modules
        return Choice(
            host=self._cpu,
            tasks=self._tasks,
            memory=self.profile_memory,
            tensors=self.profile_memory and self.record_shapes and followed,
            wanted=self._wanted(),
            config=self.experimental_config,
        )

    # --- its life ------------------------------------------------------------------------------------

    def init_trace(self) -> None:
        """Makes the directory."""
        creator = ProfPathCreator()
        creator.create_prof_dir()
        self.prof_path = creator.get_prof_dir() or ""
        self._writer = _raw.Writer(self.prof_path, self._npu)
        self.trace_id = _identity.trace_id(self.custom_trace_id_callback)
        self._write_info(ended=False)

    def warmup_trace(self) -> None:
        if self._cpu:
            _host.Recorder(self._wanted()).warm()

    def start_trace(self) -> None:
        global _running
        if _running is not None:
            raise RuntimeError("this process is being profiled already")
        if self._writer is None:
            raise RuntimeError("the profile has no directory: it was not started")
        _running = self
        try:
            torch.npu.init()  # type: ignore[attr-defined]
            self._start_ns = time.time_ns()
            self._write_info(ended=False)
            self._sources = Sources(self._writer, self._choice())
            self._sources.start()
        except BaseException:
            self.stop_trace()
            raise

    def note_step(self, number: int, start_ns: int, end_ns: int) -> None:
        """A step of the program ended."""
        if self._sources is not None:
            self._sources.step(number, start_ns, end_ns)

    def widen(self, wanted: _host.Wanted) -> None:
        """A thread that joins wants more of each operator than is recorded."""
        if self._sources is not None:
            self._sources.widen(wanted)

    def stop_trace(self) -> None:
        global _running
        if _running is not self:
            return
        _running = None
        if self._npu:
            torch.npu.synchronize()  # type: ignore[attr-defined]
        sources, self._sources = self._sources, None
        if sources is not None:
            sources.stop()

    def finalize_trace(self) -> None:
        """Closes the raw data and writes what is known about the whole."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._write_info(ended=True)
        self.metadata["ENV_VARIABLES"] = _identity.environment()
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

    def _write_info(self, ended: bool) -> None:
        common = {
            "activities": sorted(str(a) for a in self.activities),
            "schedule": getattr(self.schedule, "__dict__", None) or None,
            "record_shapes": self.record_shapes,
            "profile_memory": self.profile_memory,
            "with_stack": self.with_stack,
            "with_flops": self.with_flops,
            "with_modules": self.with_modules,
        }
        experimental = vars(self.experimental_config)
        _identity.write_info(self.prof_path, common, experimental, self._start_ns, ended)


def running() -> _ProfInterface | None:
    return _running
