"""The page: tables and curves as HTML and SVG, the timeline on a canvas; style, script and data are all inside."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from softnpu.report.data import Profile, Track

_TOP = 20
_NUMBER = ' class="n"'
_PARTS = (
    ("Computing", "#3b7dd8"), ("Communication(Not Overlapped)", "#d8843b"), ("Free", "#b9c0c8"),
)  # fmt: skip


def render(profiles: Sequence[Profile]) -> str:
    sections = "".join(_profile(number, profile) for number, profile in enumerate(profiles))
    data = json.dumps([_timeline(profile.tracks) for profile in profiles], separators=(",", ":"))
    data = data.replace("<", "\\u003c")  # no name ends the script, or begins a comment in it
    links = "".join(
        f'<li><a href="#p{number}">{html.escape(p.name)}</a></li>'
        for number, p in enumerate(profiles)
    )
    return (
        _HEAD
        + f"<header><h1>softnpu report</h1><ul>{links}</ul></header><main>{sections}</main>"
        + f'<script id="data" type="application/json">{data}</script>'
        + f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _profile(number: int, profile: Profile) -> str:
    spans = sum(len(track.spans) for track in profile.tracks)
    note = f" {profile.left_out} short spans are left out." if profile.left_out else ""
    parts = [
        f'<section id="p{number}" class="profile"><h2>{html.escape(profile.name)}</h2>',
        f"<h3>Timeline</h3><p>{spans} spans. Wheel: zoom; drag: move; double click: all.{note}</p>",
        f'<canvas class="timeline" data-profile="{number}" tabindex="0" aria-label="timeline"></canvas>',
        '<p class="hint" role="status">&nbsp;</p>',
        "<h3>Steps</h3>" + _steps(profile.steps),
        "<h3>Device time by kernel</h3>"
        + _table(
            "kernels",
            ("kernel", "core", "count", "total us", "mean us", "share"),
            _with_share(profile.kernels, ("name", "core", "count", "total", "mean")),
        ),
        "<h3>Operators of the framework</h3>"
        + _table(
            "operators",
            ("operator", "count", "host self us", "device self us"),
            [[o["name"], o["count"], o["host"], o["device"]] for o in profile.operators[:_TOP]],
        ),
        "<h3>Device memory</h3>" + _memory(profile.memory),
        "<h3>Communication</h3>"
        + _table(
            "communication",
            ("operation", "count", "total us", "bytes"),
            [[c["name"], c["count"], c["total"], c["size"]] for c in profile.communications],
        ),
        "</section>",
    ]
    return "".join(parts)


def _with_share(rows: list[dict[str, Any]], keys: Sequence[str]) -> list[list[Any]]:
    whole = sum(row["total"] for row in rows) or 1.0
    return [
        [*(row[key] for key in keys), f"{100 * row['total'] / whole:.1f} %"] for row in rows[:_TOP]
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"<td{_NUMBER}>{value:,.1f}</td>"
    if isinstance(value, int):
        return f"<td{_NUMBER}>{value:,}</td>"
    return f"<td>{html.escape(str(value))}</td>"


def _table(kind: str, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    rows = list(rows)
    if not rows:
        return f'<p class="{kind}">None in this profile.</p>'
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    head = "".join(
        f'<th scope="col"{_NUMBER if isinstance(value, (int, float)) else ""}>{html.escape(text)}</th>'
        for text, value in zip(headers, rows[0], strict=True)
    )
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _steps(steps: list[dict[str, str]]) -> str:
    if not steps:
        return '<p class="steps">None in this profile.</p>'
    longest = max(sum(float(step[part]) for part, _ in _PARTS) for step in steps) or 1.0
    rows = []
    for index, step in enumerate(steps):
        x, bars = 0.0, []
        for part, color in _PARTS:
            width = 760 * float(step[part]) / longest
            label = f"{part}: {float(step[part]):,.1f} us"
            bars.append(
                f'<rect x="{100 + x:.1f}" y="{index * 26 + 4}" width="{width:.1f}" height="18" fill="{color}">'
                f"<title>{label}</title></rect>"
            )
            x += width
        name = html.escape(f"{step['Device_id']} / {step['Step'] or 'all'}")
        rows.append(f'<text x="0" y="{index * 26 + 18}">{name}</text>' + "".join(bars))
    legend = "".join(f'<li><i style="background:{color}"></i>{part}</li>' for part, color in _PARTS)
    height = 26 * len(steps) + 6
    return (
        f'<ul class="legend"><li>device / step</li>{legend}</ul>'
        f'<svg class="steps" viewBox="0 0 880 {height}" role="img" aria-label="time of each step">{"".join(rows)}</svg>'
    )


def _memory(points: list[tuple[float, float, float]]) -> str:
    if not points:
        return '<p class="memory">Not recorded: collect with profile_memory=True.</p>'
    start, end = points[0][0], points[-1][0]
    most = max(max(a, r) for _, a, r in points) or 1.0
    span = (end - start) or 1.0

    def curve(index: int, color: str, name: str) -> str:
        path: list[str] = []
        for point in points:
            x = 880 * (point[0] - start) / span
            y = 200 - 190 * point[index] / most
            path.append(f"{'L' if path else 'M'}{x:.1f},{y:.1f}")
        return f'<path d="{"".join(path)}" fill="none" stroke="{color}" stroke-width="2"><title>{name}</title></path>'

    peak = max(a for _, a, _ in points)
    return (
        f"<p>Peak of allocated memory: {peak:,.2f} MB; reserved: {max(r for *_, r in points):,.2f} MB.</p>"
        '<svg class="memory" viewBox="0 0 880 204" role="img" aria-label="device memory over time">'
        + curve(2, "#b9c0c8", "reserved")
        + curve(1, "#3b7dd8", "allocated")
        + "</svg>"
    )


def _timeline(tracks: list[Track]) -> dict[str, Any]:
    """Names once, spans as (start, duration, name), in microseconds from the first."""
    first = min((track.spans[0][0] for track in tracks if track.spans), default=0.0)
    names: dict[str, int] = {}
    lines = []
    for track in tracks:
        spans = [
            [round(start - first, 3), round(length, 3), names.setdefault(name, len(names))]
            for start, length, name in track.spans
        ]
        lines.append({"process": track.process, "name": track.name, "spans": spans})
    return {"names": list(names), "tracks": lines}


_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>softnpu report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1100px; padding: 1rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--line); } .n { text-align: right; font-variant-numeric: tabular-nums; }
canvas.timeline { width: 100%; background: var(--soft); cursor: grab; display: block; }
svg { width: 100%; height: auto; background: var(--soft); } svg text { font-size: 13px; fill: currentColor; }
.legend { list-style: none; display: flex; gap: 1.2rem; padding: 0; } .legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.hint { min-height: 1.5em; font-variant-numeric: tabular-nums; }
</style></head><body>
"""

_SCRIPT = """
"use strict";
const profiles = JSON.parse(document.getElementById("data").textContent);
const ROW = 18, LABEL = 260;
function color(i) { return `hsl(${(i * 67) % 360} 55% 55%)`; }
function levels(spans) {           // how deep each span lies in others
  const open = [], depth = [];
  for (const [start, length] of spans) {
    while (open.length && open[open.length - 1] <= start) open.pop();
    depth.push(open.length); open.push(start + length);
  }
  return depth;
}
for (const canvas of document.querySelectorAll("canvas.timeline")) {
  const { names, tracks } = profiles[Number(canvas.dataset.profile)];
  const hint = canvas.nextElementSibling;
  let y = 0, whole = 1;
  for (const track of tracks) {
    track.depth = levels(track.spans);
    track.y = y;
    y += (Math.min(5, Math.max(0, ...track.depth)) + 1) * ROW + 6;
    for (const [start, length] of track.spans) whole = Math.max(whole, start + length);
  }
  let from = 0, to = whole;
  const height = Math.max(40, y);
  function draw() {
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    canvas.width = width * scale; canvas.height = height * scale; canvas.style.height = height + "px";
    const g = canvas.getContext("2d");
    g.scale(scale, scale); g.clearRect(0, 0, width, height);
    g.font = "12px system-ui, sans-serif";
    const px = (width - LABEL) / (to - from), ink = getComputedStyle(canvas).color;
    let drawn = 0;
    for (const track of tracks) {
      g.fillStyle = ink; g.fillText((track.process + ": " + track.name).slice(0, 42), 2, track.y + 13);
      track.spans.forEach(([start, length, name], i) => {
        if (start > to || start + length < from || track.depth[i] > 5) return;
        const x = LABEL + Math.max(0, (start - from) * px);
        const w = Math.max(0.6, (Math.min(start + length, to) - Math.max(start, from)) * px);
        g.fillStyle = color(name); g.fillRect(x, track.y + track.depth[i] * ROW, w, ROW - 2);
        if (w > 60) { g.fillStyle = "#fff"; g.fillText(names[name].slice(0, w / 7), x + 3, track.y + track.depth[i] * ROW + 12, w); }
        drawn++;
      });
    }
    canvas.dataset.drawn = drawn;
  }
  function at(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, line = event.clientY - box.top;
    const time = from + (x - LABEL) / (box.width - LABEL) * (to - from);
    for (const track of tracks) for (let i = track.spans.length - 1; i >= 0; i--) {
      const [start, length, name] = track.spans[i], top = track.y + track.depth[i] * ROW;
      if (line >= top && line < top + ROW && time >= start && time <= start + length)
        return `${names[name]}: ${length.toFixed(3)} us from ${start.toFixed(3)} us (${track.process}, ${track.name})`;
    }
    return "\\u00a0";
  }
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect(), part = Math.max(0, (event.clientX - box.left - LABEL) / (box.width - LABEL));
    const time = from + part * (to - from), factor = event.deltaY > 0 ? 1.25 : 0.8;
    from = Math.max(0, time - (time - from) * factor); to = Math.min(whole, time + (to - time) * factor);
    if (to - from < 0.01) to = from + 0.01;
    draw();
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", event => { drag = { x: event.clientX, from, to }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", event => {
    hint.textContent = at(event);
    if (!drag) return;
    let shift = (drag.x - event.clientX) / (canvas.clientWidth - LABEL) * (drag.to - drag.from);
    shift = Math.max(-drag.from, Math.min(whole - drag.to, shift));
    from = drag.from + shift; to = drag.to + shift; draw();
  });
  canvas.addEventListener("dblclick", () => { from = 0; to = whole; draw(); });
  window.addEventListener("resize", draw);
  draw();
}
document.body.dataset.ready = "yes";
"""
