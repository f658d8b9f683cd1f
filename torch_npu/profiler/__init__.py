"""torch_npu.profiler: what the host and the device did, in the files of the Ascend PyTorch Profiler.

Names are loaded when a program asks for them: who does not profile does not pay for the profiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_npu.profiler import dynamic_profile
    from torch_npu.profiler._activity import ProfilerActivity, supported_activities
    from torch_npu.profiler._non_intrusive_profile import _NonIntrusiveProfile
    from torch_npu.profiler.experimental_config import (
        AiCMetrics,
        ExportType,
        HostSystem,
        ProfilerLevel,
        _ExperimentalConfig,
        supported_ai_core_metrics,
        supported_export_type,
        supported_profiler_level,
    )
    from torch_npu.profiler.profiler import _KinetoProfile, profile, tensorboard_trace_handler
    from torch_npu.profiler.scheduler import ProfilerAction
    from torch_npu.profiler.scheduler import Schedule as schedule

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "_KinetoProfile",
    "_NonIntrusiveProfile",
    "dynamic_profile",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]

_MODULES = ("dynamic_profile", "experimental_config", "profiler", "profiler_interface", "scheduler")
_HOMES = {
    "_activity": ("ProfilerActivity", "supported_activities"),
    "_non_intrusive_profile": ("_NonIntrusiveProfile",),
    "experimental_config": (
        "AiCMetrics", "ExportType", "HostSystem", "ProfilerLevel", "_ExperimentalConfig", "supported_ai_core_metrics",
        "supported_export_type", "supported_profiler_level",
    ),
    "profiler": ("_KinetoProfile", "profile", "tensorboard_trace_handler"),
    "scheduler": ("ProfilerAction", "schedule"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOME[name]}")
    value = home.Schedule if name == "schedule" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
