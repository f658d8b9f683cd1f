"""What a planned process leaves for the report: tasks of a step, the allocator's events, and who owns which memory.

Nothing here needs PyTorch. `softnpu.plan.record` writes it in the process of the program, the command reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softnpu.plan.tasks import Task, TensorSpec

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
COMMUNICATION, OTHER, FRAGMENTATION = "communication", "other", "fragmentation"
KINDS = (
    PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, TEMPORARIES, COMMUNICATION, OTHER, FRAGMENTATION,
)  # fmt: skip
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
STAGES = "stages"  # the folder of shapes that stages of a pipeline sent


@dataclass(frozen=True, slots=True)
class Origin:
    """Where memory was asked for: the program's innermost line, the phase, and the modules around it, outermost first."""

    file: str
    line: int
    function: str
    phase: str
    modules: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "(no line of Python)"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the allocator. `order` counts allocations, releases and marks together; `launch` is the number of the
    launch inside of which it happened, 0 for none."""

    action: str
    address: int
    size: int
    order: int = 0
    origin: int = -1
    launch: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """At this place in the order, the storage at `address` is of `kind`."""

    order: int
    address: int
    kind: str


@dataclass(slots=True)
class Steps:
    """Which steps there were: `kind` is optimizer, profiler or program; `ends` places in the order, of complete steps;
    `first` the place of the first one's begin."""

    kind: str = "program"
    count: int = 0
    first: int = 0
    ends: list[int] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """No model at all, but operators: nothing stepped, and no module was called."""
        return self.kind == "program" and self.first == 0


@dataclass(slots=True)
class Recording:
    """All of one process."""

    rank: int
    ranks: int
    device: int = 0
    tasks: list[Task] = field(default_factory=list)  # of the last complete step
    events: list[Event] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    backwards: list[tuple[int, int]] = field(default_factory=list)  # begin, end in the order
    steps: Steps = field(default_factory=Steps)
    capacity: int = 0
    peak_allocated: int = 0  # as the allocator counts
    peak_reserved: int = 0
    groups: list[tuple[int, int]] = field(
        default_factory=list
    )  # size and buffer bytes of each used
    launches: int = 0
    complete: bool = False  # False: the process was still running, or was interrupted
    error: str = ""
    notes: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Replaces the file whole, so that a reader never sees half of it."""
        specs: dict[TensorSpec, int] = {}
        rows = [_row(task, specs) for task in self.tasks]
        data = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("tasks", "events", "origins", "marks", "steps")
        }
        data["tasks"] = rows
        data["specs"] = [[list(spec.shape), spec.dtype] for spec in specs]
        data["events"] = [
            [e.action, e.address, e.size, e.order, e.origin, e.launch] for e in self.events
        ]
        data["origins"] = [[o.file, o.line, o.function, o.phase, o.modules] for o in self.origins]
        data["marks"] = [[m.order, m.address, m.kind] for m in self.marks]
        steps = self.steps
        data["steps"] = [steps.kind, steps.count, steps.first, steps.ends]
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(data), "utf-8")
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Recording:
        data = json.loads(path.read_text("utf-8"))
        specs = [TensorSpec(tuple(shape), dtype) for shape, dtype in data.pop("specs")]
        data["tasks"] = [_task(row, specs) for row in data["tasks"]]
        data["events"] = [Event(*row) for row in data["events"]]
        data["origins"] = [
            Origin(file, line, function, phase, tuple(modules))
            for file, line, function, phase, modules in data["origins"]
        ]
        data["marks"] = [Mark(*row) for row in data["marks"]]
        data["steps"] = Steps(*data["steps"])
        data["backwards"] = [(begin, end) for begin, end in data["backwards"]]
        data["groups"] = [(size, bytes_) for size, bytes_ in data["groups"]]
        return cls(**data)


def _row(task: Task, specs: dict[TensorSpec, int]) -> list[Any]:
    def numbers(given: Iterable[TensorSpec]) -> list[int]:
        return [specs.setdefault(spec, len(specs)) for spec in given]

    return [
        task.name, task.kind, task.device, task.stream, numbers(task.inputs), numbers(task.outputs),
        [list(pair) for pair in task.attributes], task.waits, task.host_waits, task.ranks, task.peers, task.phase,
    ]  # fmt: skip


def _task(row: list[Any], specs: list[TensorSpec]) -> Task:
    name, kind, device, stream, inputs, outputs, attributes, waits, host, ranks, peers, phase = row
    return Task(
        name, kind, device, stream, tuple(specs[i] for i in inputs), tuple(specs[i] for i in outputs),
        tuple((key, tuple(v) if isinstance(v, list) else v) for key, v in attributes),
        tuple(waits), host, ranks, tuple(peers), phase,
    )  # fmt: skip
