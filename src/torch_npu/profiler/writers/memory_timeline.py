"""What export_memory_timeline writes: device memory by category over time.

Differs from upstream: the drawing in the HTML file is SVG, so that matplotlib is not needed.
"""

from __future__ import annotations

import bisect
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._messages import error
from torch_npu.profiler._model import Model, Op
from torch_npu.profiler.writers.operator_memory import Holding, holdings

CATEGORIES = (
    "PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT", "AUTOGRAD_DETAIL", "UNKNOWN",
)  # fmt: skip
_COLORS = (
    "darkgreen", "goldenrod", "black", "mediumpurple", "red", "mediumblue", "royalblue", "grey",
)  # fmt: skip
_PREEXISTING, _CREATE, _DESTROY = 0, 1, 3
_BACKWARD = 1  # the scope of a backward function

Event = tuple[int, int, int, str]  # ns, action, bytes (negative when they go), category


def export(model: Model, path: Path, device: str) -> None:
    kind, _, index = device.partition(":")
    if kind != "npu" or not index.isdecimal():
        error(f"device must be npu:INDEX, but is {device!r}.")
        return
    events = sorted(_events(model, int(index)), key=lambda event: event[0])
    if not events:
        error(f"There is no memory of {device} in the profile.")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith("raw.json.gz"):
        rows = [(ns, action, size, CATEGORIES.index(c)) for ns, action, size, c in events]
        _gzip(path, rows)
    elif path.name.endswith(".json.gz"):
        _gzip(path, _timeline(events))
    elif path.suffix == ".json":
        path.write_text(json.dumps(_timeline(events)), "utf-8")
    else:
        peak = max((u.allocated for u in model.memory if u.device == int(index)), default=0)
        held = max((u.reserved for u in model.memory if u.device == int(index)), default=0)
        path.write_text(_page(*_timeline(events), peak, held), "utf-8")


def _gzip(path: Path, value: Any) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(value, file)


def _timeline(events: list[Event]) -> tuple[list[int], list[list[int]]]:
    """Microseconds, and for each the bytes of every category, after a leading 0."""
    times: list[int] = []
    sizes: list[list[int]] = []
    for ns, _, size, category in events:
        us = ns // 1000
        if not times or times[-1] != us:
            times.append(us)
            sizes.append(sizes[-1].copy() if sizes else [0] * (len(CATEGORIES) + 1))
        sizes[-1][CATEGORIES.index(category) + 1] += size
    return times, sizes


# --- from allocations to categories ------------------------------------------------------------------------


def _events(model: Model, device: int) -> Iterator[Event]:
    told: dict[int, list[tuple[int, str]]] = {}
    for category, address, when in model.reader.rows("tensor"):
        told.setdefault(address, []).append((when, category))
    read: dict[int, list[tuple[int, bool]]] = {}
    for address, when, backward in model.reader.rows("use"):
        read.setdefault(address, []).append((when, backward))
    for uses in read.values():
        uses.sort()
    made = [h for h in holdings(model) if h.made.device == device]
    yield from _before(model, device, told, made)
    for holding in made:
        category = _category(model, holding, told, read)
        yield holding.made.time, _CREATE, holding.made.size, category
        gone = holding.released or holding.returned
        if gone is not None:
            yield gone.time, _DESTROY, -holding.made.size, category


def _before(
    model: Model, device: int, told: dict[int, list[tuple[int, str]]], made: list[Holding]
) -> Iterator[Event]:
    """What was there when the profile began, until it goes; without a mark it is input."""
    first = next((row[4] for row in model.reader.rows("baseline") if row[0] == device), 0)
    next_made: dict[int, int] = {}
    for holding in reversed(made):
        next_made[holding.made.address] = holding.made.time
    gone: dict[int, int] = {}
    for usage in model.memory:
        if usage.device == device and usage.action == "free_requested":
            gone.setdefault(usage.address, usage.time)
    for owner, address, size in model.reader.rows("block"):
        if owner != device:
            continue
        end = gone.get(address)
        if end is not None and end > next_made.get(address, 1 << 62):
            end = None  # the address was given away again: another block went
        last = 1 << 62 if end is None else end
        category = _known([mark for mark in told.get(address, ()) if mark[0] <= last]) or "INPUT"
        yield first, _PREEXISTING, size, category
        if end is not None:
            yield end, _DESTROY, -size, category


def _known(marks: Any) -> str | None:
    names = {category for _, category in marks}
    for category in ("PARAMETER", "OPTIMIZER_STATE", "GRADIENT"):
        if category in names:
            return category
    return None


def _category(
    model: Model,
    holding: Holding,
    told: dict[int, list[tuple[int, str]]],
    read: dict[int, list[tuple[int, bool]]],
) -> str:
    """Parameters, states and gradients are told; the rest follows from who allocated and who read."""
    made = holding.made
    gone = holding.released or holding.returned
    start, end = made.time, 1 << 62 if gone is None else gone.time + 999
    named = _known([mark for mark in told.get(made.address, ()) if start <= mark[0] <= end])
    if named is not None:
        return named
    op = model.op_at(start + 999)
    if op is None:
        return "UNKNOWN"
    if end <= _root(op).end:
        return "TEMPORARY"
    if _in_backward(op):
        return "AUTOGRAD_DETAIL"
    uses = read.get(made.address, [])
    for when, backward in uses[bisect.bisect_left(uses, (start, False)) :]:
        if when > end:
            break
        if backward:
            return "ACTIVATION"
    return "INPUT" if op.name in ("aten::to", "aten::_to_copy") else "ACTIVATION"


def _root(op: Op) -> Op:
    while op.parent is not None and op.parent.kind == "op":
        op = op.parent
    return op


def _in_backward(op: Op | None) -> bool:
    while op is not None:
        if op.scope == _BACKWARD:
            return True
        op = op.parent
    return False


# --- the drawing -------------------------------------------------------------------------------------------


def _page(times: list[int], sizes: list[list[int]], peak: int, held: int) -> str:
    width, height = 1200, 600
    span = max(1, times[-1] - times[0])
    most = max(1, max(sum(row) for row in sizes))
    x = [round((t - times[0]) / span * width, 2) for t in times]
    below = [0.0] * len(times)
    layers = []
    for index, (category, color) in enumerate(zip(CATEGORIES, _COLORS, strict=True)):
        above = [b + row[index + 1] / most * height for b, row in zip(below, sizes, strict=True)]
        top = [f"{a},{height - b:.2f}" for a, b in zip(x, above, strict=True)]
        bottom = [f"{a},{height - b:.2f}" for a, b in zip(x, below, strict=True)]
        points = " ".join(top + bottom[::-1])
        layers.append(
            f'<polygon fill="{color}" opacity="0.7" points="{points}"><title>{category}</title></polygon>'
        )
        below = above
    legend = "".join(
        f'<li><b style="color:{color}">&#9632;</b> {category}</li>'
        for category, color in zip(CATEGORIES, _COLORS, strict=True)
    )
    return f"""<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>Memory Timeline</title></head><body>
<p>Max memory allocated: {peak / 2**30:.2f} GB<br>Max memory reserved: {held / 2**30:.2f} GB</p>
<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="Memory (GB) over time (ms)">
{"".join(layers)}</svg>
<p>Time (ms): 0 to {span / 1000:.3f}; memory (GB): 0 to {most / 2**30:.4f}</p><ul>{legend}</ul></body></html>
"""
