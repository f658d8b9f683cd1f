"""The published measurements of measurements.csv, and what the clock says of each.

A column `missing` says what a row lacks to be predicted; such rows are listed and never filled in. The others are split
by a fixed rule: within a family, in the order of their ids, the first, third, fifth... set the constants, the second,
fourth, sixth... are held out. `named` is the chip in the words of the source, `chip` the profile that predicts it: an Atlas
A2 without a variant is Ascend910B3 (the product page's 313 TFLOPS), one with 24 cube cores Ascend910B2, one with 20
Ascend910B3.
"""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from softnpu.plan.clock.constants import DEFAULT, Constants

KINDS = {"operator": "operators", "comm": "communication", "model": "whole models"}
LIMITS = {"operator": 0.25, "comm": 0.25, "model": 0.30}  # on the median of what is held out


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    id: str
    kind: str
    family: str
    chip: str
    named: str
    devices: str
    what: str
    shape: str
    dtype: str
    value: float
    unit: str
    source: str
    missing: str
    held_out: bool = False

    def sizes(self) -> dict[str, str]:
        """The shape's words by name."""
        return dict(word.split("=", 1) for word in self.shape.split())


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its prediction; `error` is |predicted - measured| / measured."""

    row: Row
    predicted: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.row.value) / self.row.value


@functools.cache
def rows() -> tuple[Row, ...]:
    text = resources.files("softnpu.plan.clock").joinpath("measurements.csv").read_text("utf-8")
    count: dict[str, int] = {}
    found = []
    for entry in csv.DictReader(text.splitlines()):
        family = entry["family"]
        held_out = False
        if not entry["missing"]:
            held_out = count.get(family, 0) % 2 == 1
            count[family] = count.get(family, 0) + 1
        value = float(entry.pop("value"))
        found.append(Row(**entry, value=value, held_out=held_out))
    return tuple(found)


def judge(row: Row, constants: Constants = DEFAULT) -> Judged:
    """The prediction of one row, in its own unit."""
    from softnpu.plan.clock import families

    return Judged(row, families.predict(row, constants))


def judged(constants: Constants = DEFAULT) -> list[Judged]:
    """All rows that can be predicted."""
    return [judge(row, constants) for row in rows() if not row.missing]


def median(found: Iterable[Judged]) -> float:
    return statistics.median(one.error for one in found)
