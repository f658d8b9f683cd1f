"""Device memory in a profile: every allocation and release, from the allocator's history.

A program that records the history itself (`torch.npu.memory._record_memory_history`) keeps it: the profile then reads what
was recorded and changes nothing.
"""

from __future__ import annotations

import time
from typing import Any

from softnpu import _C

Row = list[Any]

FIELDS = ("action", "address", "size", "stream", "device", "time_ns")
_MAX = 1 << 22
_KEPT = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")


class MemoryRecorder:
    """The memory of all devices, from `start` to the last `take`."""

    def __init__(self) -> None:
        self._own: list[int] = []
        self._since_us = 0

    def start(self) -> list[Row]:
        """Begins to record; returns each device's (device, allocated, reserved, active) bytes."""
        self._since_us = time.time_ns() // 1000
        for device in range(_C.device_count()):
            if not _C.memory_history(device):
                self._own.append(device)
                _C.record_history(device, True, _MAX, None, False)
        return self._totals()

    def take(self, last: bool) -> list[Row]:
        """What happened since `start` or the last call; `last` ends the recording."""
        rows = []
        for device in range(_C.device_count()):
            for event in _C.memory_history(device):
                if event["action"] in _KEPT and event["time_us"] >= self._since_us:
                    rows.append([
                        event["action"], event["addr"], event["size"], event["stream"], device,
                        event["time_us"] * 1000,
                    ])  # fmt: skip
            if device in self._own:
                _C.record_history(device, not last, _MAX, None, False)
        self._since_us = time.time_ns() // 1000
        if last:
            self._own.clear()
        return rows

    @staticmethod
    def blocks() -> list[Row]:
        """(device, address, bytes) of what is allocated now."""
        return [
            [device, block["address"], block["size"]]
            for device in range(_C.device_count())
            for segment in _C.memory_segments(device)
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]

    @staticmethod
    def _totals() -> list[Row]:
        rows = []
        for device in range(_C.device_count()):
            stats = _C.memory_stats(device)
            keys = ("allocated_bytes", "reserved_bytes", "active_bytes")
            rows.append([device, *(stats[key]["all"]["current"] for key in keys), time.time_ns()])
        return rows
