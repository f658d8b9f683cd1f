"""The page: tables and curves as HTML and SVG, the timeline on a canvas; style, script and data are all inside.

`page.html` is its template, `timeline.js` its script; here is what they show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2

from softnpu.report.data import STEP_PARTS, Profile, Track

_TOP = 20
_PARTS = tuple(zip(STEP_PARTS, ("#3b7dd8", "#d8843b", "#b9c0c8"), strict=True))


def render(profiles: Sequence[Profile]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("softnpu.report", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        profiles=[_profile(profile) for profile in profiles],
        parts=_PARTS,
        timelines=[_timeline(profile.tracks) for profile in profiles],
    )


def _profile(profile: Profile) -> dict[str, Any]:
    communications = profile.communications
    return {
        "name": profile.name,
        "spans": sum(len(track.spans) for track in profile.tracks),
        "left_out": profile.left_out,
        "steps": _steps(profile.steps),
        "kernels": _with_share(profile.kernels, ("name", "core", "count", "total", "mean")),
        "operators": [
            [o["name"], o["count"], o["host"], o["device"]] for o in profile.operators[:_TOP]
        ],
        "memory": _memory(profile.memory),
        "communications": [[c["name"], c["count"], c["total"], c["size"]] for c in communications],
    }


def _with_share(rows: list[dict[str, Any]], keys: Sequence[str]) -> list[list[Any]]:
    whole = sum(row["total"] for row in rows) or 1.0
    return [
        [*(row[key] for key in keys), f"{100 * row['total'] / whole:.1f} %"] for row in rows[:_TOP]
    ]


def _steps(steps: list[dict[str, str]]) -> list[dict[str, Any]]:
    """A row of bars each, the longest over the whole width."""
    longest = (
        max((sum(float(step[part]) for part, _ in _PARTS) for step in steps), default=0) or 1.0
    )
    rows = []
    for step in steps:
        x, bars = 100.0, []
        for part, color in _PARTS:
            width = 760 * float(step[part]) / longest
            label = f"{part}: {float(step[part]):,.1f} us"
            bars.append({"x": x, "width": width, "color": color, "label": label})
            x += width
        rows.append({"name": f"{step['Device_id']} / {step['Step'] or 'all'}", "bars": bars})
    return rows


def _memory(points: list[tuple[float, float, float]]) -> dict[str, Any] | None:
    """The curves of (time, allocated, reserved), and the highest points of both."""
    if not points:
        return None
    allocated, reserved = max(a for _, a, _ in points), max(r for *_, r in points)
    start, span = points[0][0], (points[-1][0] - points[0][0]) or 1.0
    most = max(allocated, reserved) or 1.0

    def path(index: int) -> str:
        places = (
            f"{880 * (point[0] - start) / span:.1f},{200 - 190 * point[index] / most:.1f}"
            for point in points
        )
        return "M" + "L".join(places)

    curves = [("reserved", "#b9c0c8", path(2)), ("allocated", "#3b7dd8", path(1))]
    return {"allocated": allocated, "reserved": reserved, "curves": curves}


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
