"""PROF_CONFIG_PATH: dynamic_profile for programs that do not mention it; the optimizer's steps are the program's."""

from __future__ import annotations

import os
import weakref
from typing import Any

from torch_npu.profiler import dynamic_profile
from torch_npu.profiler._messages import error, warn
from torch_npu.utils._path_manager import PathManager


class _NonIntrusiveProfile:
    """Counts steps of one optimizer, the one that was met last, through PyTorch's own hook for all optimizers."""

    _handle: Any = None
    _seen: weakref.WeakSet[Any] = weakref.WeakSet()
    _last: Any = None

    @classmethod
    def init(cls) -> None:
        """Called when the profiler is imported, by torch_npu itself if the variable is set; else does nothing."""
        path = os.environ.get("PROF_CONFIG_PATH", "")
        for variable in ("MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON"):
            if os.environ.get(variable) == "1":
                warn(f"{variable} asks for the dynolog daemon, which does not exist here.")
        if not path or cls._handle is not None:
            return
        from torch.optim.optimizer import register_optimizer_step_post_hook

        try:
            PathManager.check_input_directory_path(path)
        except RuntimeError as wrong:
            error(f"PROF_CONFIG_PATH cannot be used, nothing is profiled: {wrong}")
            return
        dynamic_profile.init(path)
        cls._handle = register_optimizer_step_post_hook(cls._after_step)

    @classmethod
    def remove(cls) -> None:
        """Undoes `init`, for tests."""
        if cls._handle is not None:
            cls._handle.remove()
        cls._handle = cls._last = None
        cls._seen.clear()

    @classmethod
    def _after_step(cls, optimizer: Any, *_: Any) -> None:
        if optimizer not in cls._seen:
            cls._seen.add(optimizer)
            first = cls._last is None or cls._last() is None
            cls._last = weakref.ref(optimizer)
            if not first:
                return  # the other optimizer has counted this round
        if cls._last is not None and cls._last() is optimizer:
            dynamic_profile.step()
