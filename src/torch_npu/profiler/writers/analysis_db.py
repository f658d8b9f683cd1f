"""analysis.db: steps as a table, and communication as three more in profiles that communicate.

Times of communication are milliseconds; those of steps are microseconds, as tools read them.

Differs from upstream: times of waiting, synchronization and idling in CommAnalyzerTime are 0, as in communication.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import communication_matrix as matrix
from torch_npu.profiler.writers._tables import INTEGER, NUMERIC, TEXT, Database
from torch_npu.profiler.writers.communication import by_step, kind, volume
from torch_npu.profiler.writers.step_trace_time import rows as step_rows

NAME = "analysis.db"


def _columns(texts: str, numbers: str, tail: str = "") -> list[tuple[str, str]]:
    spelled = [(n, TEXT) for n in texts.split()] + [(n, NUMERIC) for n in numbers.split()]
    return spelled + [(n, TEXT) for n in tail.split()]


_BANDWIDTH = _columns(
    "hccl_op_name group_name transport_type",
    "transit_size transit_time bandwidth large_packet_ratio package_size count total_duration",
    "step type",
)
_TIME = _columns(
    "hccl_op_name group_name",
    "start_timestamp elapse_time transit_time wait_time synchronization_time idle_time",
    "step type",
)
_MATRIX = _columns(
    "hccl_op_name group_name src_rank dst_rank transport_type",
    "transit_size transit_time bandwidth",
    "step type op_name",
)
_STEPS = [("deviceId", INTEGER), ("step", TEXT)] + _columns(
    "",
    "computing communication_not_overlapped overlapped communication free stage bubble "
    "communication_not_overlapped_and_exclude_receive preparing",
)


def write(model: Model, out: Path) -> None:
    if not model.with_npu:
        return
    db = Database(out / NAME)
    if model.communications:
        db.table("CommAnalyzerBandwidth", _BANDWIDTH, _bandwidth(model))
        db.table("CommAnalyzerTime", _TIME, _time(model))
        db.table("CommAnalyzerMatrix", _MATRIX, _matrix(model))
    db.table("StepTraceTime", _STEPS, _steps(model))
    db.close()


def _bandwidth(model: Model) -> Iterator[tuple[Any, ...]]:
    for step, name, one in by_step(model):
        size, time = volume(one) / 1e6, (one.end_ns - one.start_ns) / 1e6
        rate = round(size / time, 4) if time else 0.0
        for transport in ("HCCS", "SDMA"):
            yield (
                *name.split("@"), transport, size, time, rate, 0.0, size, 1, time, step, kind(one),
            )  # fmt: skip


def _time(model: Model) -> Iterator[tuple[Any, ...]]:
    for step, name, one in by_step(model):
        time = (one.end_ns - one.start_ns) / 1e6
        start = one.start_ns / 1000
        yield (*name.split("@"), start, time, time, 0.0, 0.0, 0.0, step, kind(one))


def _matrix(model: Model) -> Iterator[tuple[Any, ...]]:
    for step, place, name, pair, link in matrix.rows(model):
        operation, group = name.split("@", 1)
        source, target = pair.split("-")
        yield (
            operation, group, source, target, link["Transport Type"], link["Transit Size(MB)"],
            link["Transit Time(ms)"], link["Bandwidth(GB/s)"], step, place, link.get("Op Name", ""),
        )  # fmt: skip


def _steps(model: Model) -> Iterator[tuple[Any, ...]]:
    for r in step_rows(model):
        times = (
            r.computing, r.communication_not_overlapped, r.overlapped, r.communication, r.free, r.stage, r.bubble,
            r.not_overlapped_without_receive, r.preparing,
        )  # fmt: skip
        yield (r.device, str(r.step), *times)
