"""What a plan asks of the clock: times for a report, a calibration, a profile, the page of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from softnpu import chips
from softnpu.plan import sweep
from softnpu.plan.clock import Calibration, ClockError, Prediction, Topology, fitting, predict
from softnpu.plan.clock.constants import DEFAULT
from softnpu.plan.tasks import Task, TensorSpec


def chip_of(soc: str) -> chips.Chip:
    """The chip of that name, or an error that lists the names."""
    if soc not in chips.names():
        raise ClockError(f"chip {soc!r} is not in chips.toml, which has {', '.join(chips.names())}")
    return chips.get(soc)


def read_calibration(file: Path | None, soc: str) -> Calibration | None:
    """A file of `--calibration`; it must be of the same chip."""
    if file is None:
        return None
    if not file.exists():
        raise ClockError(f"there is no calibration {file}: softnpu plan --calibrate DIR writes one")
    found = Calibration.read(file)
    if found.chip != soc:
        raise ClockError(f"{file} is a calibration of {found.chip}, but the plan is for {soc}")
    return found


def time(
    tasks: Sequence[Task], soc: str, ranks: int, calibration: Calibration | None = None, *, alone: bool = False
) -> Prediction:  # fmt: skip
    """The prediction of one rank's tasks in a job of `ranks` ranks. `alone`: the tasks are no part of a model's step, so they
    take what single kernels were measured to take."""
    chip = chip_of(soc)
    constants = replace(DEFAULT, in_step=1.0) if alone else DEFAULT
    return predict(tasks, chip, Topology.of(chip, ranks), constants=constants, calibration=calibration)  # fmt: skip


def as_data(tasks: Sequence[Task], found: Prediction) -> dict[str, Any]:
    """What `--json` holds of the times: of the step, and of each task with its shapes and what bounds it."""
    return {
        "predicted": True,
        "step_seconds": found.seconds,
        "mfu": found.mfu,
        "flops": found.flops,
        "exposed_communication_seconds": found.exposed_communication_seconds,
        "seconds_by_bound": found.by_bound,
        "kernels": [
            {
                "name": task.name,
                "kind": task.kind,
                "device": task.device,
                "stream": task.stream,
                "phase": task.phase,
                "waits": list(task.waits),
                "inputs": _specs(task.inputs),
                "outputs": _specs(task.outputs),
                "start": when.start,
                "seconds": when.seconds,
                "bound": when.bound,
            }
            for task, when in zip(tasks, found.tasks)
        ],
    }


def _specs(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    return [{"shape": list(spec.shape), "dtype": spec.dtype} for spec in specs]


def lines(found: Prediction) -> list[str]:
    """The times for people to read."""
    parts = ", ".join(
        f"{name} {1e3 * seconds:.2f} ms"
        for name, seconds in sorted(found.by_bound.items(), key=lambda item: -item[1])
    )
    return [
        f"predicted step: {1e3 * found.seconds:.2f} ms, MFU {found.mfu:.1%}, "
        f"exposed communication {1e3 * found.exposed_communication_seconds:.2f} ms",
        f"tasks by what limits them: {parts or 'none'}",
    ]


def calibrate(directory: Path, soc: str, file: Path) -> list[str]:
    """`--calibrate DIR`: reads profiles of a real card, writes the calibration, and says how well it fits."""
    report = fitting.calibrate(directory, chip_of(soc))
    report.calibration.write(file)
    return [*report.lines(), f"written to {file}: softnpu.plan.timing.read_calibration takes it"]


def profile(
    directory: Path, tasks: Sequence[Task], found: Prediction, soc: str, rank: int = 0
) -> Path:
    """The usual profile files with predicted times, below `directory`."""
    from softnpu.plan.clock import profile_files

    return profile_files.write(directory, tasks, found, soc, rank)


def sweep_points(reports: Iterable[Mapping[str, Any]]) -> list[sweep.Point]:
    """The points of a sweep, from what `--json` holds of each rank (ranks, step_seconds, mfu, peak_reserved_bytes,
    capacity_bytes); the slowest and the fullest of several ranks of one job count."""
    jobs: dict[int, list[Mapping[str, Any]]] = {}
    for report in reports:
        if report.get("step_seconds") is not None:
            jobs.setdefault(report["ranks"], []).append(report)
    if not jobs:
        raise ClockError("a sweep needs a step of at least one job, and no program reached one")
    points = []
    for ranks, found in sorted(jobs.items()):
        slowest = max(found, key=lambda one: one["step_seconds"])
        points.append(
            sweep.Point(
                ranks=ranks,
                step_seconds=slowest["step_seconds"],
                mfu=slowest["mfu"] or 0.0,
                peak_bytes=max(one["peak_reserved_bytes"] for one in found),
                limit_bytes=slowest["capacity_bytes"],
                exposed_communication_seconds=slowest.get("exposed_communication_seconds", 0.0),
            )
        )
    return points


def sweep_lines(series: Mapping[str, Sequence[sweep.Point]]) -> list[str]:
    """The points of named models for people to read."""
    return [
        f"{name}, {point.ranks} ranks ({point.note}): step {point.step_seconds:.4g} s, MFU {point.mfu:.1%}, "
        f"{point.peak_bytes / 2**30:.1f} GiB a rank, {'fits' if point.fits else 'does not fit'}"
        for name, points in series.items()
        for point in points
    ]
