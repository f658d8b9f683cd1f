"""One table, a row a case: ours, CPU eager, Inductor, limit and what else it is held against, goals and verdict.

The cells are plain text, which both the terminal's table and the page's are made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby

from rich.table import Table

from benchmarks.harness import Against, Row, means

COLUMNS = ("case", "npu", "cpu", "inductor", "limit", "other", "goal", "met")
_FIXED = ("cpu", "inductor", "limit")
_NUMBERS = ("npu", *_FIXED)
_SCALES = {
    "s": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)),
    "B": (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)),
}


def quantity(value: float, unit: str) -> str:
    if math.isnan(value):
        return ""
    scales = _SCALES[unit]
    name, scale = next((s for s in scales if abs(value) >= s[1]), scales[-1])
    return f"{value / scale:.3g} {name}"


def cells(row: Row) -> tuple[str, ...]:
    """A row's text for each of COLUMNS; a comparison is their value and the ratio ours / theirs."""
    if row.error:
        return (row.name, "", "", "", "", "", row.error, "wrong")
    fixed = [_cell(row.versus.get(name), row.unit) for name in _FIXED]
    other = "; ".join(
        f"{name} {_cell(a, row.unit)}" for name, a in row.versus.items() if name not in _FIXED
    )
    goals = "; ".join(
        f"{name} {a.goal}" for name, a in row.versus.items() if a.goal and not a.goal.mean
    )
    return (row.name, quantity(row.value, row.unit), *fixed, other, goals, verdict(row))


def verdict(row: Row) -> str:
    if row.met is None:
        return ""
    missed = [name for name, a in row.versus.items() if a.met is False]
    return f"not met: {', '.join(missed)}" if missed else "met"


def _cell(against: Against | None, unit: str) -> str:
    if against is None:
        return ""
    return f"{quantity(against.value, unit)} ({against.ratio:.3g})".strip()


def groups(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by group in the order of the run, the group's mean last."""
    rows = [*rows, *means(rows)]
    order = {group: i for i, group in enumerate(dict.fromkeys(r.group for r in rows))}
    rows = sorted(rows, key=lambda r: order[r.group])
    return [(group, list(members)) for group, members in groupby(rows, key=lambda r: r.group)]


def terminal(rows: list[Row]) -> Table:
    table = Table()
    for column in COLUMNS:
        right = column in _NUMBERS
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    for group, members in groups(rows):
        table.add_section()
        table.add_row(f"[bold]{group}[/bold]")
        for row in members:
            *texts, met = cells(row)
            color = "green" if met == "met" else "red"
            table.add_row(*texts, f"[{color}]{met}[/{color}]" if met else "")
    return table


def markdown(rows: list[Row]) -> str:
    lines = [_line(COLUMNS), _line("--:" if c in _NUMBERS else "---" for c in COLUMNS)]
    lines += [_line(cells(row)) for row in rows]
    return "\n".join(lines)


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(t.replace("|", "\\|") for t in texts) + " |"
