"""Step time, MFU and memory against the number of ranks: points, and the page that draws them.

Points come from shape-only runs of a program, or, for a named model, from `estimate`, which needs no program at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from softnpu.chips import Chip
from softnpu.plan.clock import architectures, training
from softnpu.plan.clock.architectures import Architecture
from softnpu.plan.clock.constants import DEFAULT, Constants
from softnpu.plan.clock.figures import ClockError
from softnpu.plan.clock.training import Layout

_COLORS = ("#3b7dd8", "#d8843b", "#4a9e5c", "#a85bb8", "#8a6d3b")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 520.0, 240.0, 64.0, 28.0


@dataclass(frozen=True, slots=True)
class Point:
    """What a plan found for one number of ranks."""

    ranks: int
    step_seconds: float
    mfu: float
    peak_bytes: float
    limit_bytes: float
    exposed_communication_seconds: float = 0.0
    note: str = ""  # the layout, where it was chosen

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.limit_bytes


# --- a named model --------------------------------------------------------------------------------------------


def estimate(
    name: str,
    ranks: Sequence[int],
    chip: Chip,
    *,
    seq: int = 4096,
    batch: int = 0,
    constants: Constants = DEFAULT,
) -> list[Point]:
    """For each number of ranks, the fastest layout that fits (or the smallest one); `batch` sequences a step, by default
    one thousand or, if that is more, two micro-batches of every rank."""
    one = architectures.get(name)
    return [_best(one, count, chip, seq, batch or max(1024, 2 * count), constants) for count in ranks]  # fmt: skip


def _best(
    one: Architecture, ranks: int, chip: Chip, seq: int, batch: int, constants: Constants
) -> Point:
    best: Point | None = None
    for layout in layouts(one, ranks, chip, seq, batch):
        used = memory(one, layout)
        fits = used <= chip.memory
        if best is not None and best.fits and not fits:
            continue
        if best is not None and not best.fits and not fits and used >= best.peak_bytes:
            continue
        step = training.step(one, layout, chip, constants=constants)
        words = f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp}" + (f", ep {layout.ep}" if one.experts else "")  # fmt: skip
        point = Point(ranks, step.seconds, step.mfu, used, chip.memory, step.exposed_communication, words)  # fmt: skip
        if best is None or (fits and not best.fits) or point.step_seconds < best.step_seconds or not fits:  # fmt: skip
            best = point
    if best is None:
        raise ClockError(
            f"no layout of {one.name} divides {ranks} ranks and a batch of {batch} sequences"
        )
    return best


def layouts(one: Architecture, ranks: int, chip: Chip, seq: int, batch: int) -> Iterator[Layout]:
    """Powers of two for tensor, pipeline and expert parallel; the rest is data parallel with a sharded optimizer."""
    node = int(chip.links.get("node_devices", 1))
    for tp in _powers(min(node, ranks, one.key_heads if one.latent is None else 8)):
        for pp in _powers(min(16, ranks // tp)):
            if ranks % (tp * pp) or one.heads % tp:
                continue
            dp = ranks // tp // pp
            if batch % dp:
                continue
            most = min(64, one.experts, dp * tp)
            for ep in [e for e in _powers(most) if dp * tp % e == 0] if one.experts else [1]:
                if one.experts and one.experts % ep == 0 and ep < min(8, most):
                    continue
                yield Layout(
                    seq, 1, batch, tp, pp, 1, dp, ep,
                    fused_communication=tp > 1, sharded_optimizer=True, overlap=True,
                )  # fmt: skip


def _powers(most: int) -> list[int]:
    return [2**i for i in range(int(math.log2(most)) + 1)] if most >= 1 else []


def memory(one: Architecture, layout: Layout) -> float:
    """Bytes of one rank: bf16 weights, fp32 gradients, a sharded AdamW, and activations of flash attention (34 bytes a
    token, layer and hidden element, as Megatron counts them) of the micro-batches that are on their way."""
    shared, experts = training.stage_parameters(one, layout)
    spread = layout.dp * layout.cp
    rest = max(1, spread * layout.tp // layout.ep) if layout.ep > 1 else spread
    states = 6 * (shared + experts) + 12 * (shared / spread + experts / rest)
    count = layout.batch // (layout.micro_batch * layout.dp)
    tokens = layout.seq * layout.micro_batch / layout.cp / layout.tp
    layer = 34 * tokens * one.hidden
    if one.experts:
        layer += tokens * one.top * (2 * one.hidden + 4 * one.expert_ffn) * 2
    return states + layer * one.layers / layout.pp * min(layout.pp, count)


# --- the page -------------------------------------------------------------------------------------------------


def write_page(path: Path, title: str, series: Mapping[str, Sequence[Point]], chip: str) -> None:
    """One HTML page that needs nothing else: a chart of each quantity, and the numbers."""
    if not any(series.values()):
        raise ClockError("a sweep without points has nothing to draw")
    text = template("sweep.html").render(
        title=title,
        chip=chip,
        charts=charts(series),
        legend=[(name, _color(index)) for index, name in enumerate(series)],
        rows=[(name, point) for name, points in series.items() for point in points],
    )
    path.write_text(text, "utf-8")


def template(name: str) -> jinja2.Template:
    """A page of this package."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("softnpu.plan", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def _color(index: int) -> str:
    return _COLORS[index % len(_COLORS)]


def charts(series: Mapping[str, Sequence[Point]]) -> list[dict[str, Any]]:
    """Step time, MFU and memory against ranks, ready to draw."""
    limits = {point.limit_bytes / 2**30 for points in series.values() for point in points}
    return [
        _chart("Step time, seconds", series, lambda p: p.step_seconds, logarithmic=True),
        _chart("MFU, percent", series, lambda p: 100 * p.mfu),
        _chart(
            "Peak memory of a rank, GiB", series, lambda p: p.peak_bytes / 2**30, line=max(limits)
        ),  # fmt: skip
    ]


def _chart(
    title: str, series: Mapping[str, Sequence[Point]], value: Any, *, logarithmic: bool = False, line: float = 0.0
) -> dict[str, Any]:  # fmt: skip
    points = [point for found in series.values() for point in found]
    values = [value(point) for point in points] + ([line] if line else [])
    low, high = (min(values), max(values)) if logarithmic else (0.0, max(values) * 1.1 or 1.0)
    if logarithmic:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.0001))
    ranks = sorted({point.ranks for point in points})
    first, last = math.log2(ranks[0]), math.log2(ranks[-1])

    def x(count: int) -> float:
        share = (math.log2(count) - first) / (last - first) if last > first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - 16)

    def y(amount: float) -> float:
        if logarithmic:
            share = math.log(amount / low) / math.log(high / low)
        else:
            share = (amount - low) / (high - low or 1.0)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - 12)

    curves = []
    for index, (name, found) in enumerate(series.items()):
        marks = [(x(p.ranks), y(value(p)), f"{name}, {p.ranks} ranks: {value(p):.4g}") for p in found]  # fmt: skip
        curves.append({"color": _color(index), "marks": marks, "path": _path(marks)})
    return {
        "title": title,
        "width": _WIDTH,
        "height": _HEIGHT,
        "curves": curves,
        "x_ticks": [(x(count), str(count)) for count in ranks],
        "y_ticks": [(y(v), f"{v:g}") for v in _ticks(low, high, logarithmic)],
        "line": y(line) if line else None,
        "left": _LEFT,
        "bottom": _HEIGHT - _BOTTOM,
    }


def _path(marks: Iterable[tuple[float, float, str]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in marks)


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    if logarithmic:
        count = round(math.log10(high / low))
        return [low * 10**i for i in range(count + 1)]
    step = 10 ** math.floor(math.log10(high))
    if high / step < 3:
        step /= 5
    return [step * i for i in range(int(high / step) + 1)]
