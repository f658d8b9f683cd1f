"""`softnpu plan --calibrate DIR`: factors by operator from a real card's profile, and how well they fit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softnpu.chips import Chip
from softnpu.plan.clock import kernels as costs
from softnpu.plan.clock import measured
from softnpu.plan.clock.calibration import Calibration, key_of
from softnpu.plan.clock.collectives import cost as collective_cost
from softnpu.plan.clock.constants import DEFAULT, Constants
from softnpu.plan.clock.figures import ClockError
from softnpu.plan.clock.topology import Topology


@dataclass(frozen=True, slots=True)
class Fit:
    """One name: kernels of it, the factor, and relative errors of single kernels before and after it."""

    kind: str
    name: str
    count: int
    factor: float
    before: float  # median
    after: float
    worst: float


@dataclass(frozen=True, slots=True)
class Report:
    """All fits, and kernels whose cost could not be predicted, by reason."""

    calibration: Calibration
    fits: list[Fit]
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(fit.count for fit in self.fits)

    def lines(self) -> list[str]:
        """For people to read."""
        out = [
            f"calibrated {self.calibration.chip} on {self.count} kernels and collectives of {len(self.fits)} types",
            f"{'type':40} {'count':>7} {'factor':>8} {'median before':>14} {'after':>8} {'worst':>8}",
        ]
        for fit in sorted(self.fits, key=lambda one: -one.count):
            errors = f"{fit.before:13.1%} {fit.after:8.1%} {fit.worst:8.1%}"
            out.append(f"{fit.kind + ':' + fit.name:40} {fit.count:7} {fit.factor:8.3f} {errors}")
        out += [f"left out {count}: {why}" for why, count in self.left_out.items()]
        return out


_Pair = tuple[float, float]  # predicted, measured


def calibrate(directory: Path, chip: Chip, constants: Constants = DEFAULT) -> Report:
    """Reads kernel_details.csv and communication.json of the profiles in `directory`."""
    tables = measured.find(directory, "kernel_details.csv")
    transfers = measured.find(directory, "communication.json")
    if not tables and not transfers:
        raise ClockError(f"there is no kernel_details.csv and no communication.json in {directory}")
    pairs: dict[tuple[str, str], list[_Pair]] = {}
    left_out: dict[str, int] = {}
    alone = Topology.of(chip)
    for table in tables:
        for one in measured.kernels(table):
            try:
                found = costs.cost(one.task, chip, alone, constants)
            except ClockError as error:
                left_out[str(error)] = left_out.get(str(error), 0) + 1
                continue
            predicted = found.seconds * constants.in_step
            pairs.setdefault(key_of(one.task), []).append((predicted, one.seconds))
    for file in transfers:
        _collectives(measured.collectives(file), chip, constants, pairs)
    if not pairs:
        raise ClockError(
            f"no kernel in {directory} has shapes: profile with profiler_level Level1 or Level2 and record_shapes"
        )
    return _report(chip, pairs, left_out)


def _collectives(
    transfers: Iterable[measured.Transfer],
    chip: Chip,
    constants: Constants,
    pairs: dict[tuple[str, str], list[_Pair]],
) -> None:
    for one in transfers:
        ranks = one.ranks or int(chip.links.get("node_devices", 0))
        if ranks < 2:
            continue
        node = int(chip.links["node_devices"])
        world = ranks if ranks <= node else -(-ranks // node) * node
        topology = Topology.of(chip, world)
        size = (
            one.nbytes / one.passes * ranks / (ranks - 1)
        )  # what left the rank is all of it but its own part
        if one.kind == "send":
            size = one.nbytes
        group = topology.group((), ranks)
        found = collective_cost(one.kind, size, group, topology, constants)
        pair = (found.seconds * constants.in_step, one.seconds)
        pairs.setdefault(("collective", one.kind), []).append(pair)


def _report(
    chip: Chip, pairs: dict[tuple[str, str], list[_Pair]], left_out: dict[str, int]
) -> Report:
    names, classes, fits = {}, {}, []
    by_class: dict[str, list[_Pair]] = {}
    for (kind, name), found in sorted(pairs.items()):
        factor = _factor(found)
        names[f"{kind}:{name}"] = factor
        by_class.setdefault(kind, []).extend(found)
        before, after = _errors(found, 1.0), _errors(found, factor)
        fits.append(
            Fit(kind, name, len(found), factor, statistics.median(before), statistics.median(after), max(after))
        )  # fmt: skip
    for kind, found in by_class.items():
        classes[kind] = _factor(found)
    return Report(Calibration(chip.name, names, classes), fits, left_out)


def _factor(pairs: Sequence[_Pair]) -> float:
    """The median of measured over predicted, of logarithms: a few stragglers do not move it."""
    return math.exp(statistics.median(math.log(b / a) for a, b in pairs))


def _errors(pairs: Sequence[_Pair], factor: float) -> list[float]:
    return [abs(a * factor - b) / b for a, b in pairs]
