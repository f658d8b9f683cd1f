"""step_trace_time.csv: what each device did in each step, in microseconds.

Differs from upstream: computing is the host's time in device tasks, and communication the time from a collective's call
until it is complete; Bubble and Stage follow from receives as on the card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from torch_npu.profiler import _intervals
from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv

NAME = "step_trace_time.csv"
HEADERS = [
    "Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage",
    "Bubble", "Communication(Not Overlapped and Exclude Receive)", "Preparing",
]  # fmt: skip


@dataclass(frozen=True)
class StepTime:
    """The columns; the step is empty in a profile without steps."""

    device: int
    step: int | str
    computing: float
    communication_not_overlapped: float
    overlapped: float
    communication: float
    free: float
    stage: float
    bubble: float
    not_overlapped_without_receive: float
    preparing: float


def write(model: Model, out: Path) -> None:
    if model.with_npu:
        _csv.write(out / NAME, HEADERS, [astuple(row) for row in rows(model)])


def rows(model: Model) -> Iterator[StepTime]:
    for device in model.devices:
        computing, communicating = model.computing(device), model.communicating(device)
        receiving = _intervals.merge(
            (c.start_ns, c.end_ns)
            for c in model.communications
            if c.device == device and c.name == "receive"
        )
        spans: list[tuple[int | str, int, int]] = [(s.number, s.start, s.end) for s in model.steps]
        if not spans:
            busy = computing + communicating
            if not busy:
                continue
            first = min((op.start for op in model.ops), default=min(busy)[0])
            spans = [("", min(first, min(busy)[0]), max(end for _, end in busy))]
        for step, start, end in spans:
            yield _row(device, step, start, end, computing, communicating, receiving)


def _row(
    device: int,
    step: int | str,
    start: int,
    end: int,
    computing: list[_intervals.Span],
    communicating: list[_intervals.Span],
    receiving: list[_intervals.Span],
) -> StepTime:
    compute = _intervals.clip(computing, start, end)
    communicate = _intervals.clip(communicating, start, end)
    alone = _intervals.total(_intervals.subtract(communicate, compute))
    whole = _intervals.total(communicate)
    bubble = _intervals.total(_intervals.clip(receiving, start, end))
    busy = compute + communicate
    first = min((a for a, _ in busy), default=start)
    last = max((b for _, b in busy), default=start)
    on_device = max(last, end) - first if busy else 0
    computed = _intervals.total(compute)
    times = (
        computed, alone, whole - alone, whole, max(0, on_device - computed - alone), max(0, on_device - bubble), bubble,
        max(0, alone - bubble), first - start,
    )  # fmt: skip
    return StepTime(device, step, *(ns / 1000 for ns in times))
