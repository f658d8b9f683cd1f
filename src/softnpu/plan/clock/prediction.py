"""`predict`: how long a list of tasks takes on a chip, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from softnpu import chips
from softnpu.chips import Chip
from softnpu.plan.clock import kernels, timeline
from softnpu.plan.clock.calibration import Calibration
from softnpu.plan.clock.constants import DEFAULT, Constants
from softnpu.plan.clock.figures import ClockError, Cost, peak
from softnpu.plan.clock.topology import Topology
from softnpu.plan.tasks import Task


@dataclass(frozen=True, slots=True)
class TaskTime:
    """When a task starts, how long it takes, and what limits it: cube, vector, memory, launch, link, latency."""

    start: float
    seconds: float
    bound: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """All times in seconds. `mfu`: operations of products over what the chip's peak would do in that time."""

    seconds: float
    mfu: float
    exposed_communication_seconds: float
    tasks: list[TaskTime] = field(repr=False)
    flops: float = 0.0
    by_bound: dict[str, float] = field(default_factory=dict)  # seconds of tasks


def predict(
    tasks: Sequence[Task],
    chip: Chip | str,
    topology: Topology | None = None,
    *,
    constants: Constants = DEFAULT,
    calibration: Calibration | None = None,
) -> Prediction:
    """The time of `tasks`, in the order of their launches, on `chip`; `topology` is needed for collectives alone."""
    chip = _chip(chip)
    world = topology or Topology.of(chip)
    known: dict[Task, Cost] = {}
    costs = []
    for task in tasks:
        key = _same_cost(task)
        found = known.get(key)
        if found is None:
            alone = kernels.cost(task, chip, world, constants)
            found = Cost(alone.seconds * constants.in_step, alone.bound, alone.flops)
            known[key] = found
            if calibration is not None:
                found = known[key] = calibration.apply(task, found)
        costs.append(found)
    lengths = [cost.seconds for cost in costs]
    plan = timeline.schedule(tasks, lengths, constants.host_launch, constants.host_sync)
    times = [TaskTime(s, c.seconds, c.bound) for s, c in zip(plan.starts, costs)]
    flops = sum(cost.flops for cost in costs)
    return Prediction(
        seconds=plan.end,
        mfu=flops / (peak(chip, _dtype(tasks, costs, chip)) * plan.end) if plan.end else 0.0,
        exposed_communication_seconds=_exposed(tasks, times),
        tasks=times,
        flops=flops,
        by_bound=_by_bound(times),
    )


def _chip(chip: Chip | str) -> Chip:
    if isinstance(chip, Chip):
        return chip
    if chip not in chips.names():
        raise ClockError(
            f"chip {chip!r} is not in chips.toml, which has {', '.join(chips.names())}"
        )
    return chips.get(chip)


def _same_cost(task: Task) -> Task:
    """Tasks that differ in place and order alone cost the same."""
    return Task(
        task.name, task.kind, 0, 0, task.inputs, task.outputs, task.attributes,
        ranks=task.ranks, peers=task.peers,
    )  # fmt: skip


def _dtype(tasks: Sequence[Task], costs: Sequence[Cost], chip: Chip) -> str:
    """The type with the most products, whose peak MFU compares with."""
    work: dict[str, float] = {}
    for task, cost in zip(tasks, costs):
        if cost.flops:
            dtype = next((s.dtype for s in task.inputs if s.dtype in chip.peak), "float16")
            work[dtype] = work.get(dtype, 0.0) + cost.flops
    return max(work, key=lambda name: work[name]) if work else "float16"


def _exposed(tasks: Sequence[Task], times: Sequence[TaskTime]) -> float:
    """Time in which a device communicates and no kernel runs, of the device with the most; copies hide nothing."""
    spans: dict[int, tuple[list[timeline.Span], list[timeline.Span]]] = {}
    for task, time in zip(tasks, times):
        if task.kind != "copy":
            both = spans.setdefault(task.device, ([], []))
            both[task.kind == "kernel"].append((time.start, time.start + time.seconds))
    return max((timeline.uncovered(*both) for both in spans.values()), default=0.0)


def _by_bound(times: Sequence[TaskTime]) -> dict[str, float]:
    found: dict[str, float] = {}
    for time in times:
        found[time.bound] = found.get(time.bound, 0.0) + time.seconds
    return found
