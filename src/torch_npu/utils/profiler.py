"""torch_npu.utils.profiler: one step of a training loop, profiled; an older way beside torch_npu.profiler."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import torch_npu
from torch_npu._errors import ErrCode, prof_error

_TORCH = {
    "enabled", "use_cuda", "record_shapes", "with_flops", "profile_memory", "with_stack", "use_kineto",
    "use_cpu", "use_npu_simple",
}  # fmt: skip
_ASCEND = {"activities", "schedule", "record_shapes", "profile_memory", "with_stack"}


def Singleton(cls: type) -> Callable[..., Any]:
    """A function that makes one object of the class and gives it ever after."""
    made: dict[type, Any] = {}

    def single(*args: Any, **kwargs: Any) -> Any:
        if cls not in made:
            made[cls] = cls(*args, **kwargs)
        return made[cls]

    return single


@Singleton
class Profile:
    """Profiles step number `start_step` between `start()` and `end()`, writes to `save_path`, and ends the program.

    profile_type: "TORCH" (torch.autograd.profiler, a Chrome trace), "ASCEND_PROFILER" (torch_npu.profiler), or None for
    nothing. Further keywords go to that profiler.
    """

    def __init__(
        self,
        start_step: int = 10,
        save_path: str = "./npu_profiling",
        profile_type: str | None = None,
        use_npu: bool = True,
        record_shape: bool = True,
        experimental_config: Any = None,
        **kwargs: Any,
    ) -> None:
        self.step_count = self.count = 0
        self.start_step, self.save_path, self.profile_type = start_step, save_path, profile_type
        self.use_npu, self.record_shape = use_npu, record_shape
        level = torch_npu.profiler.ProfilerLevel.Level2
        self.experimental_config = experimental_config or torch_npu.profiler._ExperimentalConfig(
            profiler_level=level
        )
        self.enable = profile_type in ("TORCH", "ASCEND_PROFILER")
        if not self.enable:
            return
        allowed = _TORCH if profile_type == "TORCH" else _ASCEND
        unknown = sorted(set(kwargs) - allowed)
        if unknown:
            raise ValueError(
                f"Profile: unknown arguments {unknown}, expected some of {sorted(allowed)}."
                + prof_error(ErrCode.VALUE)
            )
        os.makedirs(save_path, exist_ok=True)
        self.prof: Any
        if profile_type == "TORCH":
            device = "npu" if use_npu else None
            kwargs.pop("use_cuda", None)
            kwargs.pop("use_npu_simple", None)
            self.prof = torch.autograd.profiler.profile(use_device=device, **kwargs)
        else:
            kwargs.setdefault("record_shapes", record_shape)
            self.prof = torch_npu.profiler.profile(
                on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(save_path),
                experimental_config=self.experimental_config,
                **kwargs,
            )

    def start(self) -> None:
        """The beginning of a step."""
        if self.count:
            raise RuntimeError(
                "Profile: start() was called twice without end()." + prof_error(ErrCode.INTERNAL)
            )
        self.count = 1
        if self.enable:
            self.step_count += 1
            if self.step_count == self.start_step:
                self.prof.__enter__()

    def end(self) -> None:
        """The end of a step; after the profiled one the program ends."""
        if not self.count:
            raise RuntimeError(
                "Profile: end() needs start() before it." + prof_error(ErrCode.INTERNAL)
            )
        self.count = 0
        if self.enable and self.step_count == self.start_step:
            self.prof.__exit__(None, None, None)
            if self.profile_type == "TORCH":
                name = time.strftime("torch_prof_%Y%m%d%H%M%S.json")
                self.prof.export_chrome_trace(os.path.join(self.save_path, name))
            sys.exit()
