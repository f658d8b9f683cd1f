"""A group's ratios as a picture (SVG): a line a case, a dot for each thing it is held against, on a logarithmic axis.

Left of 1 ours is faster. A short stroke in the dot's color is the goal: the dot must not lie right of it.
"""

from __future__ import annotations

import io
import math

import matplotlib
from matplotlib.figure import Figure

from benchmarks.harness import Row

COLORS = {"cpu": "#4477aa", "inductor": "#228833", "limit": "#cc3311"}
_OTHER = "#997700"
#: text stays text, and the same numbers give the same file
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "softnpu",
    "font.family": "sans-serif",
    "font.size": 8,
}


def svg(title: str, rows: list[Row]) -> str:
    rows = [r for r in rows if r.versus and not r.error]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 0.9 + 0.2 * len(rows)), layout="constrained")
        axes = figure.subplots()
        shown: set[str] = set()
        for place, row in enumerate(rows):
            for name, against in row.versus.items():
                if against.ratio > 0:
                    _draw(axes, place, name, against, shown)
        axes.set(xscale="log", xlim=_limits(rows), ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), [row.name[:54] for row in rows])
        axes.set_title(f"{title}: our time by theirs", loc="left", fontweight="bold")
        axes.axvline(1, color="#555555", linewidth=0.8, zorder=0)
        axes.grid(axis="x", color="#dddddd")
        axes.xaxis.set_major_formatter("{x:g}")
        if shown:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(shown), frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _draw(axes, place, name, against, shown) -> None:
    known = name if name in COLORS else "other"
    color = COLORS.get(name, _OTHER)
    if against.goal and not against.goal.mean:
        axes.plot(against.goal.limit, place, "|", color=color, gid=f"goal {place} {name}")
    label = None if known in shown else known
    shown.add(known)
    axes.plot(against.ratio, place, "o", color=color, label=label, gid=f"ratio {place} {name}")


def _limits(rows: list[Row]) -> tuple[float, float]:
    """Powers of ten around all ratios and goals, and around 1."""
    found = [a for r in rows for a in r.versus.values() if a.ratio > 0]
    values = [0.5, 2.0, *(a.ratio for a in found), *(a.goal.limit for a in found if a.goal)]
    return 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
