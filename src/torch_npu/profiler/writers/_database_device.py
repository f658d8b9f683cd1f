"""The part of ascend_pytorch_profiler.db about devices: tasks, launches, communication, tables of hardware counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_npu.profiler._communication import Communication
from torch_npu.profiler._model import Model, Task
from torch_npu.profiler.writers import kernel_details as kernels
from torch_npu.profiler.writers._enums import ACL, DATA_TYPES, HCCS, NODE, SDMA
from torch_npu.profiler.writers._tables import INTEGER, NUMERIC, Database, Strings, integers


class DeviceTables:
    def __init__(self, model: Model, db: Database, text: Strings) -> None:
        self.model, self.db, self.text = model, db, text

    def write(self) -> None:
        self._device()
        self._communication()
        self._counters()

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
                (t.start, t.end, t.device, t.correlation, number, self.model.pid, text(_task_type(t)), kernels.NO_MODEL,
                 t.stream, t.number, kernels.NO_MODEL)
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
            attributes = t.op.attributes if t.op is not None else None
            spelled = text(attributes) if attributes else na
            core = text(t.core)
            yield (text(t.kernel), number, None, None, core, kind, *shapes, spelled, na, na)

    def _apis(self) -> Iterator[tuple[int, ...]]:
        launch, copy = self.text("launch"), self.text("aclrtMemcpyAsync")
        for t in self.model.tasks:
            end = t.start + max(0, t.duration)
            if t.copy:
                yield (t.start, end, ACL, self.model.global_tid(t.thread), t.correlation, copy)
                continue
            if self.model.detailed:
                name = self.text(f"aclnn{t.type}")
                yield (t.start, end, ACL, self.model.global_tid(t.thread), t.correlation, name)
            yield (t.start, end, NODE, self.model.global_tid(t.thread), t.correlation, launch)

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
                (text(name), base + n, text("Memcpy"), 0, text(c.group), None, 65534, c.rank, _peer(c), SDMA, c.size,
                 _data_type(c), HCCS, n, 1, None)
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


def _data_type(one: Communication) -> int:
    names = {value: number for number, value in DATA_TYPES.items()}
    return names.get(one.dtype.upper(), 65534)


def _peer(one: Communication) -> int:
    return one.peer if one.peer >= 0 else kernels.NO_MODEL


def _task_type(task: Task) -> str:
    """The core; MEMCPY_ASYNC for copies, which readers of the TASK table look for (trace_view.json has SDMA_SQE)."""
    return "MEMCPY_ASYNC" if task.copy else task.core
