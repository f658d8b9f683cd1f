"""The HTML page of a replay: what differs, with a map of the errors and the worst elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jinja2

from softnpu.golden._compare import Difference
from softnpu.golden._replay import Result, counts

_SHOWN = 200  # calls with a map; the table has them all
_CELL = 10

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>softnpu golden replay</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1100px; padding: 1rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.beyond, .missing, .failed { color: #d33; } .within { color: #b70; } .same { color: #393; }
svg { background: var(--soft); max-width: 100%; } circle { fill: none; stroke: currentColor; stroke-width: 2; }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; }
</style></head><body>
<h1>softnpu golden replay</h1>
<p>{{ recording }}: {% for status, count in counts.items() if count %}<span class="{{ status }}">{{ count }} {{ status }}</span>{{ ", " if not loop.last }}{% endfor %}</p>
<table><thead><tr><th>call</th><th>operator</th><th>status</th><th>output</th><th class="n">max abs</th>
<th class="n">max rel</th><th class="n">ULPs</th><th class="n">cosine</th><th class="n">beyond</th><th class="n">NaN / Inf</th></tr></thead>
<tbody>
{% for r in results %}{% for name, d in r.outputs or [("", none)] %}
<tr><td>{{ r.process }} {{ r.call.seq }}</td><td>{{ r.name }}</td><td class="{{ r.status }}">{{ r.status }}</td>
{% if d is none %}<td colspan="7">{{ r.reason }}</td>
{% else %}<td>{{ name }} {{ d.mismatch }}</td><td class="n">{{ "%.3g"|format(d.max_abs) }}</td><td class="n">{{ "%.3g"|format(d.max_rel) }}</td>
<td class="n">{{ "%.0f"|format(d.max_ulp) }}</td><td class="n">{{ "%.6f"|format(d.cosine) }}</td>
<td class="n">{{ "%.3g %%"|format(100 * d.share) }}</td><td class="n">{{ d.nan }} / {{ d.inf }}</td>{% endif %}</tr>
{% endfor %}{% endfor %}
</tbody></table>
{% for r, name, d, svg in drawn %}
<section><h2>{{ r.name }}, {{ name }}</h2>
<p>call {{ r.call.seq }}{% if r.call.module %} in {{ r.call.module }}{% endif %}{% if r.call.source %},
{{ r.call.source.file }}:{{ r.call.source.line }} <code>{{ r.call.source.text }}</code>{% endif %};
{{ d.dtype }} {{ d.shape }}. Dark parts have the largest errors; circles are the worst elements.</p>
<svg viewBox="0 0 {{ svg.width }} {{ svg.height }}" width="{{ svg.width }}" role="img" aria-label="map of the errors">
{% for x, y, strength, error in svg.cells %}<rect x="{{ x }}" y="{{ y }}" width="{{ cell }}" height="{{ cell }}" fill="#d33" fill-opacity="{{ strength }}"><title>{{ "%.3g"|format(error) }}</title></rect>
{% endfor %}{% for x, y, title in svg.marks %}<circle cx="{{ x }}" cy="{{ y }}" r="6"><title>{{ title }}</title></circle>
{% endfor %}</svg>
<table class="worst"><thead><tr><th>element</th><th class="n">recorded</th><th class="n">here</th><th class="n">abs</th><th class="n">rel</th><th class="n">ULPs</th></tr></thead><tbody>
{% for w in d.worst %}<tr><td>{{ w.index }}</td><td class="n">{{ w.golden }}</td><td class="n">{{ w.here }}</td>
<td class="n">{{ "%.3g"|format(w.abs) }}</td><td class="n">{{ "%.3g"|format(w.rel) }}</td><td class="n">{{ "%.0f"|format(w.ulp) }}</td></tr>
{% endfor %}</tbody></table></section>
{% endfor %}
</body></html>
"""


def render(recording: str, results: Sequence[Result]) -> str:
    """The worst calls first: those beyond tolerance, by their share of elements beyond it."""
    pairs = [(r, name, d) for r in results for name, d in r.outputs if d.picture]
    pairs.sort(key=lambda p: (p[2].within, -p[2].share, -p[2].max_rel))
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_PAGE).render(
        recording=recording,
        counts=counts(results),
        results=results,
        drawn=[(r, name, d, _drawing(d)) for r, name, d in pairs[:_SHOWN]],
        cell=_CELL,
    )


def _drawing(found: Difference) -> dict[str, Any]:
    rows, columns = len(found.picture), len(found.picture[0])
    finite = [e for row in found.picture for e in row if 0 < e < math.inf]
    most, least = max(finite, default=1.0), min(finite, default=1.0)
    span = math.log(most / least) or 1.0
    cells = []
    for y, row in enumerate(found.picture):
        for x, error in enumerate(row):
            if error > 0:
                part = 1.0 if error == math.inf else 0.25 + 0.75 * math.log(error / least) / span
                cells.append((x * _CELL, y * _CELL, round(min(part, 1.0), 3), error))
    marks = []
    for worst in found.worst:
        y, x = _part(worst["index"], found.shape, rows, columns)
        title = f"{worst['index']}: {worst['here']} here, {worst['golden']} recorded"
        marks.append(((x + 0.5) * _CELL, (y + 0.5) * _CELL, title))
    return {"width": columns * _CELL, "height": rows * _CELL, "cells": cells, "marks": marks}


def _part(index: list[int], shape: list[int], rows: int, columns: int) -> tuple[int, int]:
    """The part of the map in which an element lies, split as tensor_split does."""
    flat = 0
    for at, length in zip(index[:-1], shape[:-1]):
        flat = flat * length + at
    high = math.prod(shape[:-1]) if shape else 1
    wide = shape[-1] if shape else 1
    return _split(flat, high, rows), _split(index[-1] if index else 0, wide, columns)


def _split(at: int, length: int, parts: int) -> int:
    size, longer = divmod(length, parts)
    edge = longer * (size + 1)
    return at // (size + 1) if at < edge else longer + (at - edge) // size
