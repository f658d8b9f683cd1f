"""A group's ratios as a picture (SVG): a line a case, a dot for each thing it is held against, on a logarithmic axis.

Left of 1 ours is faster. A short stroke in the dot's colour is the goal: the dot must not lie right of it.
"""

from __future__ import annotations

import math
from html import escape

from benchmarks.harness import Row

COLOURS = {"cpu": "#4477aa", "inductor": "#228833", "limit": "#cc3311"}
_OTHER = "#997700"
_LEFT, _RIGHT, _LINE, _TOP, _BOTTOM, _WIDTH = 330, 20, 18, 34, 26, 860
_STYLE = "font-family: sans-serif; font-size: 11px"


class _Axis:
    """Ratios to places, between powers of ten."""

    def __init__(self, ratios: list[float]) -> None:
        self.low = math.floor(math.log10(min([0.5, *ratios])))
        self.high = math.ceil(math.log10(max([2.0, *ratios])))

    def __call__(self, ratio: float) -> float:
        part = (math.log10(ratio) - self.low) / (self.high - self.low)
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)

    def ticks(self) -> list[tuple[float, str]]:
        whole = [10.0**e for e in range(self.low, self.high + 1)]
        return [(self(t), f"{t:g}") for t in whole]


def svg(title: str, rows: list[Row]) -> str:
    rows = [r for r in rows if r.versus and not r.error]
    dots = [a for r in rows for a in r.versus.values() if a.ratio > 0]
    axis = _Axis([a.ratio for a in dots] + [a.goal.limit for a in dots if a.goal])
    height = _TOP + _LINE * len(rows) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" style="{_STYLE}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" font-weight="bold">{escape(title)}: our time by theirs</text>',
        *_legend(rows),
        *_grid(axis, height),
    ]
    for i, row in enumerate(rows):
        parts += _line(axis, row, _TOP + _LINE * i + _LINE / 2)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(rows: list[Row]) -> list[str]:
    names = dict.fromkeys(n if n in COLOURS else "other" for r in rows for n in r.versus)
    parts = []
    for i, name in enumerate(names):
        x = _LEFT + 90 * i
        parts.append(f'<circle cx="{x}" cy="12" r="4" fill="{COLOURS.get(name, _OTHER)}"/>')
        parts.append(f'<text x="{x + 8}" y="16">{escape(name)}</text>')
    return parts


def _grid(axis: _Axis, height: int) -> list[str]:
    parts = []
    for x, text in axis.ticks():
        colour = "#555555" if text == "1" else "#dddddd"
        end = height - _BOTTOM
        parts.append(f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{end}" stroke="{colour}"/>')
        parts.append(f'<text x="{x}" y="{end + 16}" text-anchor="middle">{text}</text>')
    return parts


def _line(axis: _Axis, row: Row, y: float) -> list[str]:
    parts = [f'<text x="8" y="{y + 4}">{escape(row.name[:54])}</text>']
    for name, against in row.versus.items():
        if not against.ratio > 0:
            continue
        colour = COLOURS.get(name, _OTHER)
        if against.goal and not against.goal.mean:
            x = axis(against.goal.limit)
            stroke = f'stroke="{colour}" stroke-width="2"'
            parts.append(f'<line x1="{x}" y1="{y - 7}" x2="{x}" y2="{y + 7}" {stroke}/>')
        words = escape(f"{name}: {against.ratio:.3g}")
        circle = f'<circle cx="{axis(against.ratio)}" cy="{y}" r="4" fill="{colour}">'
        parts.append(f"{circle}<title>{words}</title></circle>")
    return parts
