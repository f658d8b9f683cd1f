"""ascend_pytorch_profiler.db (with the rank in its name, if there is one): everything, as tables.

Here is what describes the profile and the host; devices, and memory with marks and load, have modules of their own.

Differs from upstream: blockNum, mixBlockNum, opState, hf32Eligible, algType, relay, retry, bandwidths and the sizes in
MEMCPY_INFO are N/A or NULL; PYTORCH_API has operators and Python calls and none of the task queue.
"""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from typing import Any

from softnpu import chips
from torch_npu.profiler._model import Model, Op
from torch_npu.profiler.writers import _enums as enums
from torch_npu.profiler.writers._database_device import DeviceTables
from torch_npu.profiler.writers._database_load import LoadTables
from torch_npu.profiler.writers._tables import INTEGER, TEXT, Database, Strings, integers
from torch_npu.profiler.writers.operator_details import dims

_SCHEMA = (1, 2, 0)


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
            DeviceTables(self.model, self.db, self.text).write()
        LoadTables(self.model, self.db, self.text).write()
        if self.model.steps:
            rows = [(step.number, step.start, step.end) for step in self.model.steps]
            self.db.table("STEP_TIME", integers("id", "startNs", "endNs"), rows)
        self.db.table(
            "STRING_IDS", [("id", "INTEGER PRIMARY KEY"), ("value", TEXT)], self.text.rows()
        )
        self.db.close()

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
            ("ENUM_API_TYPE", enums.API_TYPES), ("ENUM_HCCL_DATA_TYPE", enums.DATA_TYPES), ("ENUM_HCCL_LINK_TYPE", enums.LINKS),
            ("ENUM_HCCL_TRANSPORT_TYPE", enums.TRANSPORTS), ("ENUM_MODULE", enums.MODULES), ("ENUM_MSTX_EVENT_TYPE", enums.MARKS),
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
                (start, end, self.model.global_tid(thread))
                for start, end, thread in self.model.collections
            ]
            self.db.table("GC_RECORD", integers("startNs", "endNs", "globalTid"), rows)

    def _op(self, op: Op) -> tuple[Any, ...]:
        connection = None
        if op.tasks:
            connection = len(self.connections) and self.connections[-1][0] + 1
            self.connections += [(connection, task.correlation) for task in op.tasks]
        chain = self.chains.setdefault(op.call_stack, len(self.chains)) if op.stack else None
        return (
            op.start, op.end, self.model.global_tid(op.thread), connection, self.text(op.name),
            op.sequence if op.kind == "op" else None, op.forward_thread if op.kind == "op" else None,
            self.text(";".join(op.dtypes)) if op.dtypes else None,
            self.text(dims(op.shapes)) if op.shapes else None,
            chain, enums.PYTHON if op.kind == "python" else enums.OP,
        )  # fmt: skip
