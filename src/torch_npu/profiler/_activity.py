"""torch_npu.profiler.ProfilerActivity: which side is profiled."""

from __future__ import annotations

import enum


class ProfilerActivity(enum.Enum):
    """CPU: operators of the framework on the host; NPU: tasks of the device."""

    CPU = 0
    NPU = 1


def supported_activities() -> set[ProfilerActivity]:
    return set(ProfilerActivity)
