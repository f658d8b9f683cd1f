"""torch_npu.profiler: what the host and the device did, in the files of the Ascend PyTorch Profiler.

`import torch_npu` leaves it alone until a program asks for it; what reads and writes profiles is loaded with the first one.
"""

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

_NonIntrusiveProfile.init()
