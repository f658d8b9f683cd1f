"""torch_npu.profiler.profile, its handler and the offline analysis: upstream's profiler on the emulated device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd.profiler import record_function

from torch_npu.profiler import _host, profiler_interface
from torch_npu.profiler._activity import ProfilerActivity, supported_activities
from torch_npu.profiler._kineto import _KinetoProfile
from torch_npu.profiler._messages import tolerant, warn
from torch_npu.profiler._profiler_path_creator import ProfPathCreator
from torch_npu.profiler.experimental_config import _ExperimentalConfig
from torch_npu.profiler.scheduler import ProfilerAction, always

__all__ = ["analyse", "profile", "supported_activities", "tensorboard_trace_handler"]


class profile(_KinetoProfile):
    """A profiler with a schedule: `with profile(...) as prof`, and `prof.step()` after each step.

    Args:
        schedule: from a step's number to a ProfilerAction, as `schedule(...)` returns it; everything by default.
        on_trace_ready: called with the profiler when a cycle was recorded.
        execution_trace_observer: started and stopped with the profiler.
        use_cuda: has no meaning here and is answered with a warning.

    The other arguments are those of `_KinetoProfile`.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        execution_trace_observer: Any = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        use_cuda: bool | None = None,
    ) -> None:
        super().__init__(
            activities=activities,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            experimental_config=experimental_config,
            custom_trace_id_callback=custom_trace_id_callback,
        )
        if schedule is not None and not callable(schedule):
            warn("Invalid parameter schedule: it cannot be called; everything is recorded.")
            schedule = None
        if on_trace_ready is not None and not callable(on_trace_ready):
            warn("Invalid parameter on_trace_ready: it cannot be called; it is left out.")
            on_trace_ready = None
        if use_cuda is not None:
            warn("use_cuda has no meaning for an NPU.")
        self.record_steps = schedule is not None
        self.schedule = schedule or always
        self.prof_if.schedule = self.schedule
        self.on_trace_ready = on_trace_ready
        self.execution_trace_observer = execution_trace_observer
        self.step_num = 0
        self.current_action = self.schedule(0)
        self.stopped = True
        self._offset = 0
        self._step_range: record_function | None = None
        self._step_start = 0

    @tolerant
    def __enter__(self) -> profile:
        self.start()
        return self

    @tolerant
    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        if not getattr(self, "stopped", True):
            self.stop()
        super().__del__()

    @tolerant
    def start(self) -> None:
        self.stopped = False
        if self.on_trace_ready is None:
            ProfPathCreator().init(export_only_mode=True)
        self._transit(ProfilerAction.NONE, self.current_action)
        self._begin_step()
        if self.execution_trace_observer is not None:
            self.execution_trace_observer.start()

    @tolerant
    def stop(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        self._end_step()
        self._transit(self.current_action, None)
        if self.execution_trace_observer is not None:
            self.execution_trace_observer.stop()

    @tolerant
    def step(self) -> None:
        """A step ended and the next one begins."""
        if self.stopped:
            warn("The profiler is stopped: step has no effect.")
            return
        self._end_step()
        before = self.current_action
        self.step_num += 1
        self.current_action = self.schedule(self.step_num)
        self._transit(before, self.current_action)
        self._begin_step()

    def _set_step_num_offset_for_dynamic_prof(self, step: int) -> None:
        """The number of the first step, for a profiler that was started in the middle of a run."""
        self._offset = step

    def _begin_step(self) -> None:
        if self.record_steps:
            self._step_start = time.time_ns()
            self._step_range = record_function(f"ProfilerStep#{self.step_num + self._offset}")
            self._step_range.__enter__()

    def _end_step(self) -> None:
        if self._step_range is not None:
            self._step_range.__exit__(None, None, None)
            self._step_range = None
            number = self.step_num + self._offset
            self.prof_if.note_step(number, self._step_start, time.time_ns())

    # --- from one action to the next -----------------------------------------------------------------

    def _transit(self, before: ProfilerAction, after: ProfilerAction | None) -> None:
        """Leaves an action and enters the next one; None ends the profiler."""
        action, run = ProfilerAction, self.prof_if
        recording = (action.RECORD, action.RECORD_AND_SAVE)
        goes_on = after in recording and before == action.RECORD
        if before in recording and not goes_on:
            self._leave(before, after)
        elif before == action.WARMUP and after is None:
            warn("The profiler is stopped while it warms up: there is nothing to analyze.")
            run.finalize_trace()
            run.delete_prof_dir()
        elif before == action.WARMUP and after == action.NONE:
            warn("The schedule goes from WARMUP to NONE: nothing is recorded.")
            run.finalize_trace()
        if after is None or after == action.NONE or goes_on or before == after == action.WARMUP:
            return
        if before != action.WARMUP:
            run.init_trace()
        if after == action.WARMUP:
            run.warmup_trace()
        else:
            run.start_trace()

    def _leave(self, before: ProfilerAction, after: ProfilerAction | None) -> None:
        """Ends a recording; it is handed over unless the schedule breaks off in the middle of a cycle."""
        self.prof_if.stop_trace()
        self.prof_if.finalize_trace()
        complete = before == ProfilerAction.RECORD_AND_SAVE
        if after is None and self.record_steps:
            warn("The profiler is stopped before its cycle of steps is complete.")
        elif after is not None and not complete:
            warn(
                f"The schedule goes from RECORD to {after.name}: the recording is not handed over."
            )
        if (complete or after is None) and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    # --- ids and threads -----------------------------------------------------------------------------

    @tolerant
    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        """Replaces the function that gives the id of the next profile."""
        self.prof_if.custom_trace_id_callback = callback

    @tolerant
    def get_trace_id(self) -> str:
        """The id of the current profile; empty before the first one."""
        return self.prof_if.trace_id

    @classmethod
    @tolerant
    def enable_profiler_in_child_thread(
        cls,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
    ) -> None:
        """Operators of the calling thread become part of the profile that runs."""
        flags = {
            "record_shapes": record_shapes, "profile_memory": profile_memory, "with_stack": with_stack,
            "with_flops": with_flops, "with_modules": with_modules,
        }  # fmt: skip
        for name, value in flags.items():
            if not isinstance(value, bool):
                warn(
                    f"Invalid parameter {name}: expected a bool, received {value!r}; False is used."
                )
                flags[name] = False
        run = profiler_interface.running()
        if flags["profile_memory"] and run is not None and not run.profile_memory:
            warn(
                "profile_memory of a thread needs profile_memory of the profiler: memory is one for all threads."
            )
        wanted = _host.Wanted(
            flags["record_shapes"], flags["with_stack"], flags["with_flops"], flags["with_modules"]
        )
        if run is not None:
            run.widen(wanted)
        _host.enable_in_child_thread(wanted)

    @classmethod
    @tolerant
    def disable_profiler_in_child_thread(cls) -> None:
        """The calling thread is no longer profiled."""
        torch.npu.synchronize()  # type: ignore[attr-defined]
        _host.disable_in_child_thread()


@tolerant
def tensorboard_trace_handler(
    dir_name: str | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,
    async_mode: bool = False,
) -> Callable[[profile], None]:
    """A handler for `on_trace_ready`: profiles go to `dir_name` and are analyzed there.

    Args:
        dir_name: the current directory by default.
        worker_name: the first part of the profile's name, the host's name by default.
        analyse_flag: analyze at once; else `analyse` does it later.
        async_mode: analyze in a process of its own, while the program goes on.
    """
    ProfPathCreator().init(worker_name=worker_name, dir_name=dir_name)
    if not isinstance(analyse_flag, bool):
        warn(f"Invalid parameter analyse_flag: {analyse_flag!r}; True is used.")
        analyse_flag = True
    if not isinstance(async_mode, bool):
        warn(f"Invalid parameter async_mode: {async_mode!r}; False is used.")
        async_mode = False

    def handler_fn(prof_inst: profile) -> None:
        if analyse_flag:
            prof_inst.prof_if.analyse(async_mode=async_mode)

    return handler_fn


@tolerant
def analyse(
    profiler_path: str,
    max_process_number: int = max(1, (os.cpu_count() or 2) // 2),
    export_type: str | list[str] | None = None,
) -> None:
    """Analyzes raw profiles: one `..._ascend_pt` directory, or all that are in a directory, in parallel.

    Args:
        profiler_path: a directory.
        max_process_number: how many processes work; half of the processors by default.
        export_type: "text", "db" or a list of them; by default what the profile was collected with.
    """
    cores = os.cpu_count() or 1
    if (
        isinstance(max_process_number, bool)
        or not isinstance(max_process_number, int)
        or max_process_number < 1
    ):
        warn(f"Invalid parameter max_process_number: {max_process_number!r}; the default is used.")
        max_process_number = max(1, cores // 2)
    if max_process_number > cores:
        warn(f"max_process_number is more than the {cores} processors; {cores} is used.")
        max_process_number = cores
    types = [export_type] if isinstance(export_type, str) else export_type
    if types is not None and (
        not isinstance(types, list) or not types or any(t not in ("text", "db") for t in types)
    ):
        warn(f"Invalid parameter export_type: {export_type!r}; the profile's own is used.")
        types = None
    from torch_npu.profiler import _analyse

    _analyse.many(profiler_path, max_process_number, types)
