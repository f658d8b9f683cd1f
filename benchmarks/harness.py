"""Runs a subject and its baseline by turns in one process, and compares their medians.

A `Case` is one comparison, with the goal it has to meet and a check that both compute the same. Interleaving cancels
what other programs do to the machine; warm-up is apart and never counted.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from softnpu import __version__

MIN_ROUNDS, MAX_ROUNDS = 5, 200
BUDGET = 1.0  # seconds a case, unless five rounds take longer
INNER = 2e-3  # seconds that one measurement should last: short calls are repeated


@dataclass(frozen=True)
class Goal:
    """What the ratio subject / baseline must be: at most `limit` (a slower or faster bound alike)."""

    limit: float
    mean: bool = False  # holds for the geometric mean of the group, not for each case

    def met(self, ratio: float) -> bool:
        return ratio <= self.limit

    def __str__(self) -> str:
        bound = f"{1 / self.limit:g}x faster" if self.limit < 0.5 else f"<= {self.limit:g}"
        return bound + (" (mean)" if self.mean else "")


@dataclass(frozen=True)
class Case:
    """One comparison: two functions without arguments that do the same work."""

    group: str
    name: str
    subject: Callable[[], Any]
    baseline: Callable[[], Any]
    goal: Goal | None = None
    check: Callable[[], None] | None = None  # raises AssertionError if the subject is wrong
    against: str = "cpu"


@dataclass(frozen=True)
class Result:
    """Medians in seconds, and the median of the ratios of the rounds; `error` if the subject is wrong."""

    case: Case
    subject: float
    baseline: float
    ratio: float
    rounds: int
    error: str = ""


def measure(case: Case, budget: float = BUDGET) -> Result:
    try:
        if case.check is not None:
            case.check()
    except (AssertionError, RuntimeError) as error:
        return Result(
            case, math.nan, math.nan, math.nan, 0, " ".join(str(error).split()) or "wrong result"
        )
    mine, theirs = _warm(case.subject), _warm(case.baseline)
    repeat = [max(1, int(INNER / max(t, 1e-7))) for t in (mine, theirs)]
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + budget
    while len(pairs) < MIN_ROUNDS or (time.perf_counter() < end and len(pairs) < MAX_ROUNDS):
        if len(pairs) % 2:
            baseline = _time(case.baseline, repeat[1])
            subject = _time(case.subject, repeat[0])
        else:
            subject = _time(case.subject, repeat[0])
            baseline = _time(case.baseline, repeat[1])
        pairs.append((subject, baseline))
    subject, baseline = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Result(case, subject, baseline, statistics.median(s / b for s, b in pairs), len(pairs))


def _warm(function: Callable[[], Any]) -> float:
    """Runs until caches and pools are filled; returns how long the last call took."""
    took = _time(function, 1)
    for _ in range(2 if took > 0.2 else 5):
        took = _time(function, 1)
    return took


def _time(function: Callable[[], Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - start) / repeat


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs))


# --- the report -----------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    model = next(
        (x.split(":", 1)[1].strip() for x in text.splitlines() if x.startswith("model name")), ""
    )
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "softnpu": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def run(cases: list[Case], out: str | None = None, console: Console | None = None) -> list[Result]:
    """Measures all cases, prints the tables and writes the JSON; the results come back in order."""
    console = console or Console()
    before = machine()
    results = [
        measure(c) for c in track(cases, "measuring", console=Console(stderr=True), transient=True)
    ]
    for group in dict.fromkeys(c.group for c in cases):
        console.print(_table(group, [r for r in results if r.case.group == group]))
    console.print(
        f"{before['cpu']}, {before['cores']} cores, {before['capability']}, load {before['load']:.1f} at the start; "
        f"torch {before['torch']}. Ratios are times of the subject by times of the baseline: less is better."
    )
    if out:
        Path(out).write_text(
            json.dumps({"machine": before, "results": _plain(results)}, indent=1), "utf-8"
        )
    return results


def unmet(results: list[Result]) -> list[str]:
    """The goals that were missed, in words."""
    missed = []
    for group in dict.fromkeys(r.case.group for r in results):
        members = [r for r in results if r.case.group == group]
        missed += [f"{group}, {r.case.name}: {r.error}" for r in members if r.error]
        for goal, ratio, name in _judged(members):
            if not goal.met(ratio):
                missed.append(f"{group}, {name}: {ratio:.3g}, the goal is {goal}")
    return missed


def _judged(members: list[Result]) -> list[tuple[Goal, float, str]]:
    members = [r for r in members if not r.error]
    each = [
        (r.case.goal, r.ratio, r.case.name) for r in members if r.case.goal and not r.case.goal.mean
    ]
    shared = [r for r in members if r.case.goal and r.case.goal.mean]
    if shared and shared[0].case.goal:
        each.append(
            (shared[0].case.goal, geometric_mean(r.ratio for r in shared), "geometric mean")
        )
    return each


def _table(group: str, results: list[Result]) -> Table:
    table = Table(title=group, title_justify="left")
    for column in ("case", "npu", "baseline", "against", "ratio", "goal", "met"):
        table.add_column(
            column, justify="right" if column in ("npu", "baseline", "ratio") else "left"
        )
    for r in results:
        if r.error:
            table.add_row(r.case.name, "", "", r.case.against, "", "", "[red]wrong[/red]")
            continue
        goal = r.case.goal if r.case.goal and not r.case.goal.mean else None
        table.add_row(
            r.case.name, _seconds(r.subject), _seconds(r.baseline), r.case.against, f"{r.ratio:.3g}",
            str(goal or ""), "" if goal is None else _verdict(goal.met(r.ratio)),
        )  # fmt: skip
    for goal, ratio, name in _judged(results):
        if goal.mean:
            table.add_row(name, "", "", "", f"{ratio:.3g}", str(goal), _verdict(goal.met(ratio)))
    return table


def _verdict(met: bool) -> str:
    return "[green]met[/green]" if met else "[red]not met[/red]"


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _plain(results: list[Result]) -> list[dict[str, Any]]:
    rows = []
    for r in results:
        goal = r.case.goal
        rows.append(
            {
                "group": r.case.group,
                "name": r.case.name,
                "against": r.case.against,
                "error": r.error,
                "npu_seconds": None if r.error else r.subject,
                "baseline_seconds": None if r.error else r.baseline,
                "ratio": None if r.error else r.ratio,
                "rounds": r.rounds,
                "goal": None if goal is None else goal.limit,
                "goal_of": None if goal is None else "mean" if goal.mean else "case",
                "met": None if goal is None or goal.mean or r.error else goal.met(r.ratio),
            }
        )
    return rows
