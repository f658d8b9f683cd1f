"""The findings as one HTML page: for each the timeline of its streams, with the missing edge drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2

from softnpu.findings import Finding

_ROW, _TOP, _LEFT, _WIDTH, _BOX = 30, 46, 30, 310, 205


def render(findings: Sequence[Finding], title: str = "softnpu sanitizer") -> str:
    shown = [{"f": finding, "timeline": timeline(finding)} for finding in findings]
    return _PAGE.render(title=title, findings=shown)


def timeline(finding: Finding) -> dict[str, Any] | None:
    """Columns are streams, rows are steps; the two accesses are marked, and the edge between them is missing."""
    if len(finding.accesses) < 2:
        return None
    first, second = finding.accesses[0], finding.accesses[1]
    moments = {step: (actor, what) for step, actor, what in finding.history}
    for access in (first, second):
        moments[access.step] = (access.stream, access.operator)
    actors = list(dict.fromkeys([first.stream, second.stream, *(a for a, _ in moments.values())]))
    columns = {actor: number for number, actor in enumerate(actors)}
    steps = sorted(moments)
    boxes = []
    where = {}
    for row, step in enumerate(steps):
        actor, what = moments[step]
        x, y = _LEFT + columns[actor] * _WIDTH, _TOP + row * _ROW
        marked = step in (first.step, second.step)
        boxes.append({"x": x, "y": y, "text": what[:30], "full": what, "marked": marked})
        where[step] = (x, y)
    edge = None
    if first.step in where and second.step in where and first.step != second.step:
        (x1, y1), (x2, y2) = where[first.step], where[second.step]
        right = x2 > x1
        edge = {
            "x1": x1 + (_BOX if right else 0), "y1": y1 + 11,
            "x2": x2 + (0 if right else _BOX), "y2": y2 + 11,
        }  # fmt: skip
        edge["tx"], edge["ty"] = (edge["x1"] + edge["x2"]) // 2, (edge["y1"] + edge["y2"]) // 2
    return {
        "actors": [{"x": _LEFT + n * _WIDTH, "name": actor} for actor, n in columns.items()],
        "boxes": boxes,
        "edge": edge,
        "box": _BOX,
        "width": _LEFT + len(actors) * _WIDTH,
        "height": _TOP + len(steps) * _ROW + 10,
    }


_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em;
  color: #1c2733; background: #fff; }
section { border: 1px solid #ccd3da; border-radius: 6px; padding: 1em 1.2em; margin: 1.4em 0; }
h2 { margin: 0 0 .3em; font-size: 1.1em; color: #b3261e; }
.repair { background: #e8f5e9; padding: .5em .8em; border-radius: 4px; }
pre { background: #f4f6f8; padding: .6em; overflow-x: auto; margin: .3em 0 .8em; }
.ours { color: #5f6b76; }
svg { background: #fafbfc; border: 1px solid #e1e6eb; border-radius: 4px; max-width: 100%; }
@media (prefers-color-scheme: dark) {
  body { background: #14181d; color: #d7dde3; } section { border-color: #3a444e; }
  pre { background: #1d242b; } .ours { color: #98a3ad; } .repair { background: #1d3322; } h2 { color: #ff8a80; }
}
</style></head><body>
<h1>{{ title }}</h1>
<p>{{ findings | length }} finding{{ "" if findings | length == 1 else "s" }}</p>
{% for item in findings %}
<section class="finding">
<h2>{{ loop.index }}. {{ item.f.title }} [{{ item.f.kind }}]{% if item.f.count > 1 %} ({{ item.f.count }} times)\
{% endif %}</h2>
<p>{{ item.f.text }}.</p>
<p class="repair"><b>Missing:</b> {{ item.f.repair }}</p>
{% if item.timeline %}
{% set t = item.timeline %}
<svg class="timeline" viewBox="0 0 {{ t.width }} {{ t.height }}" width="{{ t.width }}" height="{{ t.height }}" \
role="img" aria-label="the streams around the race">
<defs><marker id="arrow{{ loop.index }}" markerWidth="9" markerHeight="9" refX="8" refY="4.5" orient="auto">
<path d="M0 0 L9 4.5 L0 9 z" fill="#d32f2f"/></marker></defs>
{% for actor in t.actors %}
<text x="{{ actor.x }}" y="20" font-size="12" font-weight="bold" fill="#33414e">{{ actor.name }}</text>
<line x1="{{ actor.x + 12 }}" y1="30" x2="{{ actor.x + 12 }}" y2="{{ t.height - 4 }}" stroke="#c4ccd4"/>
{% endfor %}
{% for box in t.boxes %}
<g><title>{{ box.full }}</title>
<rect x="{{ box.x }}" y="{{ box.y }}" width="{{ t.box }}" height="22" rx="3" \
fill="{{ '#ffcdd2' if box.marked else '#e3edf7' }}" stroke="{{ '#d32f2f' if box.marked else '#9db4ca' }}"/>
<text x="{{ box.x + 7 }}" y="{{ box.y + 15 }}" font-size="12" fill="#1c2733">{{ box.text }}</text></g>
{% endfor %}
{% if t.edge %}
<line class="missing" x1="{{ t.edge.x1 }}" y1="{{ t.edge.y1 }}" x2="{{ t.edge.x2 }}" y2="{{ t.edge.y2 }}" \
stroke="#d32f2f" stroke-width="2" stroke-dasharray="6 4" marker-end="url(#arrow{{ loop.index }})"/>
<text class="label" x="{{ t.edge.tx }}" y="{{ t.edge.ty + 4 }}" font-size="11" fill="#d32f2f" text-anchor="middle" \
stroke="#fafbfc" stroke-width="5" paint-order="stroke">missing order</text>
{% endif %}
</svg>
{% endif %}
{% for access in item.f.accesses %}
<p><b>{{ access.stream }}</b>: {{ access.operator or "the program" }}\
{% if access.in_graph %} in a replayed graph{% endif %} {{ access.does }} {{ access.tensor }}</p>
<pre>{% for frame in access.stack %}<span{% if frame.ours %} class="ours"{% endif %}>{{ frame }}</span>
{% endfor %}</pre>
{% endfor %}
{% if item.f.allocated %}
<p>Allocated ({{ item.f.allocation_bytes }} bytes):</p>
<pre>{% for frame in item.f.allocated %}<span{% if frame.ours %} class="ours"{% endif %}>{{ frame }}</span>
{% endfor %}</pre>
{% endif %}
{% if item.f.related %}
<p>Where {{ item.f.related_text }}:</p>
<pre>{% for frame in item.f.related %}<span{% if frame.ours %} class="ours"{% endif %}>{{ frame }}</span>
{% endfor %}</pre>
{% endif %}
</section>
{% endfor %}
</body></html>
""")
