"""What a profile is made of: operators, tasks, steps, marks, changes of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_npu.profiler import _kernels

STEP = "ProfilerStep#"


@dataclass(slots=True, eq=False)
class Op:
    """A host operator, an annotation or a Python call; times in nanoseconds since the epoch."""

    name: str
    start: int
    end: int
    thread: int
    sequence: int
    forward_thread: int
    scope: int
    kind: str  # op, user, python
    shapes: list[Any] | None
    dtypes: list[str] | None
    stack: list[str] | None
    flops: int
    attributes: str | None = None
    parent: Op | None = None
    children_ns: int = 0
    tasks: list[Task] = field(default_factory=list)
    device_total: int = 0  # time of the tasks of this operator and of those within
    device_total_core: int = 0  # of these, on AI cores

    @property
    def duration(self) -> int:
        return self.end - self.start

    @property
    def call_stack(self) -> str:
        return ";\r\n".join(self.stack or ())


@dataclass(slots=True, eq=False)
class Task:
    """What ran on a stream of a device."""

    name: str
    device: int
    stream: int
    thread: int
    start: int
    end: int
    inputs: list[Any]
    outputs: list[Any]
    correlation: int
    type: str
    core: str
    copy: bool
    number: int = 0  # in its stream
    wait: int = 0  # since the end of the task before it in the stream
    op: Op | None = None

    @property
    def duration(self) -> int:
        return self.end - self.start

    @property
    def kernel(self) -> str:
        return "MEMCPY_ASYNC" if self.copy else _kernels.kernel_name(self.type)


@dataclass(frozen=True)
class Step:
    number: int
    start: int  # on the host
    end: int  # of the host or the device, whichever is later


@dataclass(frozen=True)
class Mark:
    message: str
    domain: str
    start: int
    end: int
    stream: tuple[int, int] | None
    thread: int


@dataclass(frozen=True, slots=True)
class Usage:
    """A change of device memory, with the totals after it, in bytes."""

    action: str
    address: int
    size: int
    stream: int
    device: int
    time: int
    allocated: int
    reserved: int
    active: int


def group_id(name: str) -> str:
    """The number by which tools know a communicator: two polynomial hashes of its name, side by side."""
    high = low = 0
    for letter in name:
        high = (high * 29 + ord(letter)) % 2**32
        low = (low * 131 + ord(letter)) % 2**32
    return str(high << 32 | low)
