"""The generated part of docs/plan-clock.md: every published measurement, what the clock says of it, and the errors.

`python -m tools.plan_table` writes it; a test fails when the page is stale.
"""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

from softnpu.plan.clock import evidence
from softnpu.plan.clock.constants import DEFAULT
from softnpu.plan.clock.evidence import Judged, Row

PAGE = Path(__file__).parents[1] / "docs" / "plan-clock.md"
MARK = "<!-- generated from here on by tools/plan_table.py -->\n"


def generated() -> str:
    """The text below the mark."""
    found = {one.row.id: one for one in evidence.judged()}
    parts = ["\n## Errors\n\n", _summary(list(found.values()))]
    parts += ["\n## Constants\n\n", _constants()]
    for kind, title in evidence.KINDS.items():
        rows = [row for row in evidence.rows() if row.kind == kind]
        parts += [f"\n## Measurements: {title}\n\n", _table(rows, found)]
    return "".join(parts)


def page() -> str:
    """The whole page: what is written by hand, the mark, what is generated."""
    return PAGE.read_text("utf-8").split(MARK)[0] + MARK + generated()


def _summary(found: list[Judged]) -> str:
    lines = [
        "| what | rows | used for constants | their median | held out | their median | limit | worst held out |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]
    for kind, title in evidence.KINDS.items():
        rows = [row for row in evidence.rows() if row.kind == kind]
        mine = [one for one in found if one.row.kind == kind]
        lines.append(_summary_line(title, len(rows), mine, evidence.LIMITS[kind]))
    lines += ["\nBy family:\n\n", "| family | rows | median | held out | their median |\n|---|---|---|---|---|\n"]  # fmt: skip
    for family in dict.fromkeys(one.row.family for one in found):
        mine = [one for one in found if one.row.family == family]
        held = [one.error for one in mine if one.row.held_out]
        shown = f"{statistics.median(held):.1%}" if held else "none"
        lines.append(f"| {family} | {len(mine)} | {evidence.median(mine):.1%} | {len(held)} | {shown} |\n")  # fmt: skip
    return "".join(lines)


def _summary_line(title: str, rows: int, mine: list[Judged], limit: float) -> str:
    used = [one for one in mine if not one.row.held_out]
    held = [one for one in mine if one.row.held_out]
    worst = max(held, key=lambda one: one.error)
    return (
        f"| {title} | {rows}, {rows - len(mine)} not predictable | {len(used)} | {evidence.median(used):.1%} | {len(held)} "
        f"| **{evidence.median(held):.1%}** | {limit:.0%} | {worst.row.id}: {worst.error:.0%} |\n"
    )


def _constants() -> str:
    lines = ["| constant | value |\n|---|---|\n"]
    for one in dataclasses.fields(DEFAULT):
        lines.append(f"| `{one.name}` | {getattr(DEFAULT, one.name):g} |\n")
    return "".join(lines)


def _table(rows: list[Row], found: dict[str, Judged]) -> str:
    lines = [
        "| id | what | chip | shape | measured | predicted | error | use | source |\n",
        "|---|---|---|---|---|---|---|---|---|\n",
    ]
    for row in rows:
        one = found.get(row.id)
        if one is None:
            rest = f"not predictable | | missing: {row.missing}"
        else:
            use = "held out" if row.held_out else "constants"
            sign = (one.predicted - row.value) / row.value
            rest = f"{one.predicted:.4g} | {sign:+.0%} | {use}"
        chip = row.named if row.named == row.chip or not row.chip else f"{row.named}: {row.chip}"
        cells = (row.id, row.what, chip, f"{row.shape} {row.dtype if row.chip else ''}".strip(), f"{row.value:g} {row.unit}", rest, row.source)  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
