"""The page of a plan: one HTML file that needs nothing else. Memory over a step is drawn by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softnpu.plan import report, sweep, timing
from softnpu.plan.clock import ClockError
from softnpu.plan.recording import KINDS

_COLORS = dict(zip(KINDS, (
    "#3b7dd8", "#d8843b", "#4a9e5c", "#a85bb8", "#c9c04a", "#4ab3b8", "#8a6d3b", "#9aa3ad",
)))  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900.0, 320.0, 72.0, 24.0
_KERNELS = 20  # names in the table


def write(path: Path, found: Mapping[str, Any]) -> None:
    """`found`: what `--json` holds."""
    reports = [one for job in found["jobs"] for one in job["by_rank"]]
    ranks = [
        {
            "data": one,
            "verdict": report.verdict(one) if one["fits"] is not None else "no NPU was used",
            "picture": picture(one),
            "kernels": by_name(one["kernels"]),
        }
        for one in reports
    ]
    text = sweep.template("report.html").render(
        program=found["program"], soc=found["soc"], jobs=found["jobs"], ranks=ranks, charts=_charts(found, reports),
        colors=_COLORS, size=report.size, place=report.place,
    )  # fmt: skip
    path.write_text(text, "utf-8")


def _charts(found: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Against ranks, if there are several numbers of them with a step."""
    if len(found["jobs"]) < 2:
        return []
    try:
        return sweep.charts({found["program"]: timing.sweep_points(reports)})
    except ClockError:  # no program reached a step: the numbers stay, without a picture
        return []


def picture(one: Mapping[str, Any]) -> dict[str, Any] | None:
    """Areas of the kinds on top of each other, from the first event of the step to the last."""
    curve = one["curve"]
    if len(curve) < 2:
        return None
    first, last = curve[0]["event"], curve[-1]["event"]
    most = max(sum(point["bytes"].values()) for point in curve)
    limit = one["capacity_bytes"]
    top = 1.08 * (max(most, limit) if limit < 2 * most else most) or 1.0

    def x(event: int) -> float:
        return _LEFT + (event - first) / max(1, last - first) * (_WIDTH - _LEFT - 8)

    def y(count: float) -> float:
        return _HEIGHT - _BOTTOM - count / top * (_HEIGHT - _BOTTOM - 8)

    areas = []
    below = [0.0] * len(curve)
    for kind in curve[0]["bytes"]:
        above = [low + point["bytes"][kind] for low, point in zip(below, curve)]
        if above != below:
            edge = [(x(p["event"]), y(v)) for p, v in zip(curve, above)]
            edge += [(x(p["event"]), y(v)) for p, v in reversed(list(zip(curve, below)))]
            path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in edge) + "Z"
            areas.append({"kind": kind, "color": _COLORS[kind], "path": path})
        below = above
    peak = one["curve_peak_event"]
    return {
        "width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "bottom": _HEIGHT - _BOTTOM, "areas": areas,
        "ticks": [(y(top * i / 5), report.size(top * i / 5)) for i in range(5)],
        "limit": y(limit) if limit <= top else None, "limit_text": report.size(limit),
        "peak": x(peak) if first <= peak <= last else None,
    }  # fmt: skip


def by_name(kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Kernels of one name together, the longest first."""
    found: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        one = found.setdefault(kernel["name"], {"name": kernel["name"], "count": 0, "seconds": 0.0, "bounds": {}})  # fmt: skip
        one["count"] += 1
        one["seconds"] += kernel["seconds"]
        bounds = one["bounds"]
        bounds[kernel["bound"]] = bounds.get(kernel["bound"], 0.0) + kernel["seconds"]
    longest = sorted(found.values(), key=lambda one: -one["seconds"])[:_KERNELS]
    for one in longest:
        one["bound"] = max(one["bounds"], key=lambda name: one["bounds"][name])
    return longest
