"""ascend_pytorch_profiler.db (with the rank in its name, if there is one): everything, as tables."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softnpu import chips
from torch_npu.profiler._communication import Communication
from torch_npu.profiler._model import Model, Op, Task
from torch_npu.profiler.writers import kernel_details as kernels
from torch_npu.profiler.writers._tables import INTEGER, NUMERIC, TEXT, Database, Strings, integers
from torch_npu.profiler.writers.npu_module_mem import changes
from torch_npu.profiler.writers.operator_details import dims
from torch_npu.profiler.writers.operator_memory import holdings

_OP, _QUEUE, _PYTHON, _MSTX = 50001, 50002, 50003, 50004
_ACL, _NODE, _COMMUNICATION = 20000, 10000, 5500
_API_TYPES = {
    _ACL: "acl", 15000: "model", _NODE: "node", _COMMUNICATION: "communication", 5000: "runtime", _OP: "op",
    _QUEUE: "queue", _PYTHON: "trace", _MSTX: "mstx",
}  # fmt: skip
_DATA_TYPES = {
    0: "INT8", 1: "INT16", 2: "INT32", 3: "FP16", 4: "FP32", 5: "INT64", 6: "UINT64", 7: "UINT8", 8: "UINT16",
    9: "UINT32", 10: "FP64", 11: "BFP16", 12: "INT128", 255: "RESERVED", 65534: "N/A", 65535: "INVALID_TYPE",
}  # fmt: skip
_LINKS = {
    0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW", 6: "STANDARD_ROCE", 255: "RESERVED",
    65534: "N/A", 65535: "INVALID_TYPE",
}  # fmt: skip
_TRANSPORTS = {
    0: "SDMA",
    1: "RDMA",
    2: "LOCAL",
    255: "RESERVED",
    65534: "N/A",
    65535: "INVALID_TYPE",
}
_MODULES = {3: "HCCL", 7: "RUNTIME", 33: "APP", 45: "GE"}
_MARKS = {0: "marker", 1: "push/pop", 2: "start/end", 3: "marker_ex"}
_HCCS, _SDMA, _APP = 1, 0, 33
_SCHEMA = (1, 2, 0)
_SYSTEM = {
    "cpu": ("CPU_USAGE", ["timestampNs", "cpuId", "usage"]),
    "mem": ("HOST_MEM_USAGE", ["timestampNs", "usage"]),
    "disk": ("HOST_DISK_USAGE", ["timestampNs", "readRate", "writeRate", "usage"]),
    "network": ("HOST_NETWORK_USAGE", ["timestampNs", "usage", "speed"]),
}
_TICKS = 100  # of /proc, a second


def name(model: Model) -> str:
    return (
        "ascend_pytorch_profiler.db"
        if model.rank < 0
        else f"ascend_pytorch_profiler_{model.rank}.db"
    )


def write(model: Model, out: Path) -> None:
    _Writer(model, Database(out / name(model))).write()


class _Writer:
    def __init__(self, model: Model, db: Database) -> None:
        self.model, self.db, self.text = model, db, Strings()
        self.connections: list[tuple[int, int]] = []
        self.chains: dict[str, int] = {}

    def write(self) -> None:
        self._describe()
        if self.model.with_cpu:
            self._host()
        if self.model.with_npu:
            self._device()
            self._communication()
            self._counters()
        self._memory()
        self._marks()
        self._system()
        if self.model.steps:
            rows = [(step.number, step.start, step.end) for step in self.model.steps]
            self.db.table("STEP_TIME", integers("id", "startNs", "endNs"), rows)
        self.db.table(
            "STRING_IDS", [("id", "INTEGER PRIMARY KEY"), ("value", TEXT)], self.text.rows()
        )
        self.db.close()

    def _tid(self, thread: int) -> int:
        return self.model.pid << 32 | thread

    def _enum(self, table: str, values: dict[int, str]) -> None:
        self.db.table(table, [("id", INTEGER), ("name", TEXT)], values.items())

    def _describe(self) -> None:
        model, start = self.model, self.model.info.get("start_info", {}).get("start_time", 0)
        end = model.info.get("end_info", {}).get("collectionTimeEnd", start)
        self.db.table("SESSION_TIME_INFO", integers("startTimeNs", "endTimeNs"), [(start, end)])
        chip = chips.current().name
        self.db.table(
            "NPU_INFO", [("id", INTEGER), ("name", TEXT)], [(d, chip) for d in model.devices]
        )
        host = socket.gethostname()
        self.db.table(
            "HOST_INFO", [("hostUid", TEXT), ("hostName", TEXT)], [(str(uuid.getnode()), host)]
        )
        ranks = [(model.rank, device) for device in model.devices]
        self.db.table("RANK_DEVICE_MAP", integers("rankId", "deviceId"), ranks)
        schema = {
            "SCHEMA_VERSION": ".".join(map(str, _SCHEMA)), "SCHEMA_VERSION_MAJOR": str(_SCHEMA[0]),
            "SCHEMA_VERSION_MINOR": str(_SCHEMA[1]), "SCHEMA_VERSION_MICRO": str(_SCHEMA[2]),
        }  # fmt: skip
        rows = [*schema.items(), *((k, json.dumps(v)) for k, v in model.reader.metadata().items())]
        self.db.table("META_DATA", [("name", TEXT), ("value", TEXT)], rows)
        for table, values in (
            ("ENUM_API_TYPE", _API_TYPES), ("ENUM_HCCL_DATA_TYPE", _DATA_TYPES), ("ENUM_HCCL_LINK_TYPE", _LINKS),
            ("ENUM_HCCL_TRANSPORT_TYPE", _TRANSPORTS), ("ENUM_MODULE", _MODULES), ("ENUM_MSTX_EVENT_TYPE", _MARKS),
        ):  # fmt: skip
            self._enum(table, values)

    # --- the host ------------------------------------------------------------------------------------

    def _host(self) -> None:
        columns = [("startNs", TEXT), ("endNs", TEXT)] + integers(
            "globalTid", "connectionId", "name", "sequenceNumber", "fwdThreadId", "inputDtypes", "inputShapes",
            "callchainId", "type",
        )  # fmt: skip
        rows = [self._op(op) for op in self.model.ops]
        self.db.table("PYTORCH_API", columns, rows)
        self.db.table("CONNECTION_IDS", integers("id", "connectionId"), self.connections)
        if self.chains:
            frames = [
                (number, self.text(frame), depth)
                for stack, number in self.chains.items()
                for depth, frame in enumerate(stack.split(";\r\n"))
            ]
            self.db.table("PYTORCH_CALLCHAINS", integers("id", "stack", "stackDepth"), frames)
        if self.model.collections:
            rows = [
                (start, end, self._tid(thread)) for start, end, thread in self.model.collections
            ]
            self.db.table("GC_RECORD", integers("startNs", "endNs", "globalTid"), rows)

    def _op(self, op: Op) -> tuple[Any, ...]:
        connection = None
        if op.tasks:
            connection = len(self.connections) and self.connections[-1][0] + 1
            self.connections += [(connection, task.correlation) for task in op.tasks]
        chain = self.chains.setdefault(op.call_stack, len(self.chains)) if op.stack else None
        return (
            op.start, op.end, self._tid(op.thread), connection, self.text(op.name),
            op.sequence if op.kind == "op" else None, op.forward_thread if op.kind == "op" else None,
            self.text(";".join(op.dtypes)) if op.dtypes else None,
            self.text(dims(op.shapes)) if op.shapes else None,
            chain, _PYTHON if op.kind == "python" else _OP,
        )  # fmt: skip

    # --- the device ----------------------------------------------------------------------------------

    def _device(self) -> None:
        text, tasks = self.text, self.model.tasks
        columns = integers(
            "startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "globalPid", "taskType", "contextId",
            "streamId", "taskId", "modelId",
        )  # fmt: skip
        self.db.table(
            "TASK",
            columns,
            (
                (t.start, t.end, t.device, t.correlation, number, self.model.pid, text(t.core), kernels.NO_MODEL, t.stream,
                 t.number, kernels.NO_MODEL)
                for number, t in enumerate(tasks)
            ),
        )  # fmt: skip
        self.db.index("TaskIndex", "TASK", "startNs", "globalTaskId")
        columns = integers(
            "name", "globalTaskId", "blockNum", "mixBlockNum", "taskType", "opType", "inputFormats", "inputDataTypes",
            "inputShapes", "outputFormats", "outputDataTypes", "outputShapes", "attrInfo", "opState", "hf32Eligible",
        )  # fmt: skip
        self.db.table("COMPUTE_TASK_INFO", columns, self._compute(tasks))
        apis = integers("startNs", "endNs", "type", "globalTid", "connectionId", "name")
        self.db.table("CANN_API", apis, self._apis())
        moves = [("globalTaskId", NUMERIC), ("size", NUMERIC), ("memcpyOperation", NUMERIC)]
        copies = [(number, None, None) for number, task in enumerate(tasks) if task.copy]
        self.db.table("MEMCPY_INFO", moves, copies)
        if self.model.detailed and kernels.counters(
            self.model.experimental.get("_aic_metrics", "")
        ):
            columns = [("globalTaskId", INTEGER), ("name", INTEGER), ("value", NUMERIC)]
            self.db.table("TASK_PMU_INFO", columns, [])

    def _compute(self, tasks: list[Task]) -> Iterator[tuple[Any, ...]]:
        text, na = self.text, self.text("N/A")
        known = self.model.detailed
        for number, t in enumerate(tasks):
            if t.copy:
                continue
            shapes = [na] * 6
            if known:
                sides = (t.inputs, t.outputs)
                shapes = [
                    text(spell(side))
                    for side in sides
                    for spell in (kernels.formats, kernels.dtypes, kernels.shapes)
                ]
            kind = text(t.type) if known else na
            yield (text(t.kernel), number, None, None, text(t.core), kind, *shapes, na, na, na)

    def _apis(self) -> Iterator[tuple[int, ...]]:
        launch, copy = self.text("launch"), self.text("aclrtMemcpyAsync")
        for t in self.model.tasks:
            end = t.start + max(0, t.duration)
            if t.copy:
                yield (t.start, end, _ACL, self._tid(t.thread), t.correlation, copy)
                continue
            if self.model.detailed:
                name = self.text(f"aclnn{t.type}")
                yield (t.start, end, _ACL, self._tid(t.thread), t.correlation, name)
            yield (t.start, end, _NODE, self._tid(t.thread), t.correlation, launch)

    def _communication(self) -> None:
        if not self.model.communications:
            return
        text, named = self.text, self.model.named_communications
        base = len(self.model.tasks)
        columns = integers(
            "opName", "startNs", "endNs", "connectionId", "groupName", "opId", "relay", "retry"
        )
        columns += (
            integers("dataType", "algType") + [("count", NUMERIC)] + integers("opType", "deviceId")
        )
        self.db.table(
            "COMMUNICATION_OP",
            columns,
            (
                (text(name), c.start_ns, c.end_ns, base + n, text(c.group), n, None, None, _data_type(c), text("N/A"),
                 c.count, text(f"hcom_{c.name}_"), c.device)
                for n, (name, c) in enumerate(named)
            ),
        )  # fmt: skip
        columns = integers(
            "name", "globalTaskId", "taskType", "planeId", "groupName", "notifyId", "rdmaType", "srcRank", "dstRank",
            "transportType", "size", "dataType", "linkType", "opId", "isMaster",
        ) + [("bandwidth", NUMERIC)]  # fmt: skip
        self.db.table(
            "COMMUNICATION_TASK_INFO",
            columns,
            (
                (text(name), base + n, text("Memcpy"), 0, text(c.group), None, 65534, c.rank, _peer(c), _SDMA, c.size,
                 _data_type(c), _HCCS, n, 1, None)
                for n, (name, c) in enumerate(named)
            ),
        )  # fmt: skip

    def _counters(self) -> None:
        """Tables of hardware counters: asked for, so there; nothing was counted, so empty."""
        asked = self.model.experimental
        ways = [f"{side}{what}" for side in ("rx", "tx") for what in ("PacketRate", "ByteRate")]
        sums = [
            f"{side}{what}"
            for side in ("rx", "tx")
            for what in ("Packets", "Bytes", "Errors", "Dropped")
        ]
        network = integers("deviceId", "timestampNs", "bandwidth")
        for side in ("rx", "tx"):
            network += [(n, NUMERIC) for n in ways if n.startswith(side)]
            network += integers(*(n for n in sums if n.startswith(side)))
        moment = integers("deviceId", "timestampNs")
        if asked.get("_sys_io"):
            for table in ("NIC", "ROCE"):
                self.db.table(table, network + integers("funcId"), [])
        if asked.get("_sys_interconnection"):
            self.db.table(
                "HCCS", moment + [("txThroughput", NUMERIC), ("rxThroughput", NUMERIC)], []
            )
            kinds = [
                "txPost",
                "txNonpost",
                "txCpl",
                "txNonpostLatency",
                "rxPost",
                "rxNonpost",
                "rxCpl",
            ]
            bus = [(kind + part, NUMERIC) for kind in kinds for part in ("Min", "Max", "Avg")]
            self.db.table("PCIE", moment + bus, [])

    # --- memory, marks, the host's load --------------------------------------------------------------

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
        modules = [(_APP, time, size, device) for device, time, size in changes(self.model)]
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
            tid = self._tid(m.thread)
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


def _data_type(one: Communication) -> int:
    names = {value: number for number, value in _DATA_TYPES.items()}
    return names.get(one.dtype.upper(), 65534)


def _peer(one: Communication) -> int:
    return one.peer if one.peer >= 0 else kernels.NO_MODEL
