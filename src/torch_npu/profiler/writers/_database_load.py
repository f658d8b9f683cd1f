"""The part of ascend_pytorch_profiler.db about memory, marks and the host's load."""

from __future__ import annotations

from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers._enums import APP
from torch_npu.profiler.writers._tables import INTEGER, NUMERIC, Database, Strings, integers
from torch_npu.profiler.writers.npu_module_mem import changes
from torch_npu.profiler.writers.operator_memory import holdings

_SYSTEM = {
    "cpu": ("CPU_USAGE", ["timestampNs", "cpuId", "usage"]),
    "mem": ("HOST_MEM_USAGE", ["timestampNs", "usage"]),
    "disk": ("HOST_DISK_USAGE", ["timestampNs", "readRate", "writeRate", "usage"]),
    "network": ("HOST_NETWORK_USAGE", ["timestampNs", "usage", "speed"]),
}
_TICKS = 100  # of /proc, a second


class LoadTables:
    def __init__(self, model: Model, db: Database, text: Strings) -> None:
        self.model, self.db, self.text = model, db, text

    def write(self) -> None:
        self._memory()
        self._marks()
        self._system()

    def _memory(self) -> None:
        if not self.model.memory:
            return
        text, pta = self.text, self.text("PTA")
        columns = integers(
            "component",
            "timestamp",
            "totalAllocated",
            "totalReserved",
            "totalActive",
            "streamPtr",
            "deviceId",
        )
        self.db.table(
            "MEMORY_RECORD",
            columns,
            (
                (pta, u.time, u.allocated, u.reserved, u.active, u.stream, u.device)
                for u in self.model.memory
                if not u.action.startswith("segment")
            ),
        )
        columns = integers(
            "name", "size", "allocationTime", "releaseTime", "activeReleaseTime", "duration", "activeDuration",
            "allocationTotalAllocated", "allocationTotalReserved", "allocationTotalActive", "releaseTotalAllocated",
            "releaseTotalReserved", "releaseTotalActive", "streamPtr", "deviceId",
        )  # fmt: skip
        rows = []
        for one in holdings(self.model) if self.model.with_cpu else ():
            made, released, returned = one.made, one.released, one.returned
            last = released or returned
            rows.append((
                text(one.name), made.size, made.time, released and released.time, returned and returned.time,
                released and released.time - made.time, returned and returned.time - made.time,
                made.allocated, made.reserved, made.active,
                last and last.allocated, last and last.reserved, last and last.active, made.stream, made.device,
            ))  # fmt: skip
        self.db.table("OP_MEMORY", columns, rows)
        columns = [
            ("moduleId", INTEGER),
            ("timestampNs", INTEGER),
            ("totalReserved", NUMERIC),
            ("deviceId", INTEGER),
        ]
        modules = [(APP, time, size, device) for device, time, size in changes(self.model)]
        self.db.table("NPU_MODULE_MEM", columns, modules)

    def _marks(self) -> None:
        if not self.model.marks:
            return
        columns = integers(
            "startNs", "endNs", "eventType", "rangeId", "category", "message", "globalTid", "endGlobalTid", "domainId",
            "connectionId",
        )  # fmt: skip
        rows = []
        for number, m in enumerate(self.model.marks):
            tid = self.model.global_tid(m.thread)
            kind = 2 if m.end > m.start else 0
            rows.append((
                m.start, m.end, kind, number, None, self.text(m.message), tid, tid, self.text(m.domain), None,
            ))  # fmt: skip
        self.db.table("MSTX_EVENTS", columns, rows)

    def _system(self) -> None:
        samples: dict[str, list[tuple[Any, ...]]] = {}
        for kind, time, seconds, before, after in self.model.reader.rows("system"):
            rates = [
                (new - old) / seconds if seconds else 0.0
                for old, new in zip(before, after, strict=True)
            ]
            rows = {
                "cpu": (time, -1, 100 * sum(rates) / _TICKS),
                "mem": (time, 100 * after[0] / after[1] if after[1] else 0.0),
                "disk": (time, *rates, None),
                "network": (time, None, sum(rates)),
            }
            samples.setdefault(kind, []).append(rows[kind])
        for kind in self.model.experimental.get("_host_sys", ()):
            if kind in _SYSTEM:
                table, columns = _SYSTEM[kind]
                self.db.table(table, [(c, NUMERIC) for c in columns], samples.get(kind, []))
