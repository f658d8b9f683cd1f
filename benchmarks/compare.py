"""Two runs: what became slower, faster or wrong, and which goals were lost.

python -m benchmarks.compare OLD.json NEW.json [--threshold 0.1] [--strict]

Runs at different times see different machines, so ratios are compared, not times: a case is slower if it lost against
everything it was measured beside, by more than the threshold.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from benchmarks import record
from benchmarks.harness import Row, means

_SAME = ("cpu", "cores", "threads", "capability")


@dataclass(frozen=True)
class Change:
    """A case of both files, and by how much it is slower (above 1) or faster."""

    old: Row
    new: Row
    factor: float

    @property
    def lost(self) -> bool:
        """It was right, or met its goals, and does not now."""
        worse = self.new.met is False and self.old.met is not False
        return worse or bool(self.new.error and not self.old.error)

    def __str__(self) -> str:
        line = f"{self.new.group}, {self.new.name}: "
        if self.new.error:
            return line + self.new.error
        return line + f"{self.factor:.2f} times the time" + (", goal lost" if self.lost else "")


def factor(old: Row, new: Row) -> float:
    """New ratio by old ratio: the smallest change if all comparisons moved one way, else 1."""
    both = [n for n in new.versus if n in old.versus and old.versus[n].ratio > 0]
    grown = [new.versus[n].ratio / old.versus[n].ratio for n in both]
    if not grown or min(grown) <= 1 <= max(grown):
        return 1.0
    return min(grown) if grown[0] > 1 else max(grown)


def changes(old: list[Row], new: list[Row]) -> list[Change]:
    before = {(r.group, r.name): r for r in [*old, *means(old)]}
    pairs = [(before.get((r.group, r.name)), r) for r in [*new, *means(new)]]
    return [Change(o, n, factor(o, n)) for o, n in pairs if o is not None]


def regressions(found: list[Change], threshold: float) -> list[Change]:
    return [c for c in found if c.factor > 1 + threshold or c.lost]


@click.command(help=__doc__)
@click.argument("old", type=click.Path(exists=True))
@click.argument("new", type=click.Path(exists=True))
@click.option("--threshold", default=0.1, help="By how much a ratio may grow.")
@click.option("--strict", is_flag=True, help="Exit with 1 if anything regressed.")
def main(old: str, new: str, threshold: float, strict: bool) -> None:
    (was, before), (now, after) = record.read(old), record.read(new)
    for key in _SAME:
        if was[key] != now[key]:
            print(f"not the same machine: {key} was {was[key]}, is {now[key]}")
    found = changes(before, after)
    worse = regressions(found, threshold)
    for change in worse:
        print(f"regression: {change}")
    for change in found:
        if change.factor < 1 / (1 + threshold) and not change.lost:
            print(f"faster: {change}")
    known, left = ({(r.group, r.name) for r in rows} for rows in (before, after))
    for group, name in sorted(known - left):
        print(f"gone: {group}, {name}")
    print(f"{len(found)} cases in both, {len(worse)} regressed, {len(left - known)} new")
    sys.exit(1 if strict and worse else 0)


if __name__ == "__main__":
    main()
