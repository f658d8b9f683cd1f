"""The device's side of a profile: the tasks that ran, from the native trace of `softnpu._C`.

Nothing is recorded until `start`; `take` empties the record, so that it can be written while the program runs.
A task is a row of plain values (see FIELDS), ready for JSON.
"""

from __future__ import annotations

from typing import Any

from softnpu import _C

FIELDS = (
    "name", "device", "stream", "thread", "start_ns", "end_ns", "inputs", "outputs", "correlation",
)  # fmt: skip
CAPACITY = 1 << 20  # tasks between two calls of `take`

Row = list[Any]


def start(shapes: bool) -> None:
    """Begins to record; `shapes` keeps shapes, data types and formats too."""
    _C.trace_start(shapes, CAPACITY)


def stop() -> None:
    _C.trace_stop()


def dropped() -> int:
    """Tasks that were lost since `start`, because nobody took them in time."""
    return _C.trace_dropped()


def take() -> list[Row]:
    """The tasks since the last call, in the order in which they ended."""
    return [
        [
            name,
            device,
            stream,
            thread,
            start_ns,
            end_ns,
            _tensors(inputs),
            _tensors(outputs),
            number,
        ]
        for name, number, device, stream, thread, start_ns, end_ns, inputs, outputs in _C.trace_take()
    ]


def _tensors(values: list[tuple[tuple[int, ...], Any]]) -> list[Row]:
    """Shape, data type and format; formats are not recorded, and -1 stands for the plain one."""
    return [[list(shape), str(dtype), -1] for shape, dtype in values]
