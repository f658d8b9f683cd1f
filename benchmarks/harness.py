"""Measures a case: ours and everything it is held against, by turns in one process, warm-up apart.

A `Case` is one row of the table: what we do (`subject`), and what else does the same work or bounds it: the CPU
device, Inductor, the machine's limit, each with the goal that it sets. Interleaving cancels what other programs do to
the machine; the ratio of a row is the median over the rounds, of the ratios within a round. `measure` makes a `Row`,
which is plain data: tables, files and pages are made of it.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MIN_ROUNDS, MAX_ROUNDS = 5, 100
BUDGET = 0.4  # seconds a case, unless five rounds take longer
PATIENCE = 1.5  # seconds after which three rounds must do
WARM = 0.05  # seconds of calls that do not count, two of them at least
INNER = 2e-3  # seconds that one measurement should last: short calls are repeated
SHORT = 5e-3  # calls below are made once more before each measurement


@dataclass(frozen=True)
class Goal:
    """What the ratio ours / theirs must be: at most `limit` (a slower or faster bound alike)."""

    limit: float
    mean: bool = False  # holds for the geometric mean of the group, not for each case

    def met(self, ratio: float) -> bool:
        return ratio <= self.limit

    def __str__(self) -> str:
        bound = f"{1 / self.limit:.3g}x faster" if self.limit < 0.7 else f"<= {self.limit:.3g}"
        return bound + (" (mean)" if self.mean else "")


@dataclass(frozen=True)
class Versus:
    """One thing a case is held against: a function to time, or a quantity that is known."""

    run: Callable[[], Any] | float
    goal: Goal | None = None
    label: str = ""  # what it is, where the name of the column does not say it
    once: bool = False  # too slow for rounds: called one time, without warm-up
    times: float = 1.0  # the function does one part in so many of the work
    reads: bool = False  # the function returns the quantity, instead of being timed

    @property
    def note(self) -> str:
        """How it was measured, where that differs from the rule."""
        said = [self.label] if self.label else []
        said += ["measured once"] if self.once else []
        if self.times > 1 and float(self.times).is_integer():
            said.append(f"1/{self.times:g} of the work, times {self.times:g}")
        return ", ".join(said)


@dataclass(frozen=True)
class Case:
    """One row: functions without arguments that do the same work.

    `baseline`, `goal` and `against` are the first comparison, `others` the further ones by name. The names `cpu`,
    `inductor` and `limit` have columns of their own.
    """

    group: str
    name: str
    subject: Callable[[], Any]
    baseline: Callable[[], Any] | Versus | None = None
    goal: Goal | None = None
    check: Callable[[], None] | None = None  # raises AssertionError if the subject is wrong
    against: str = "cpu"
    others: Mapping[str, Versus] = field(default_factory=dict)
    unit: str = "s"
    reads: bool = False  # the functions return the quantity, in `unit`, instead of being timed
    once: bool = False  # one round, without warm-up: for what is slow, or always the same

    def versus(self) -> dict[str, Versus]:
        if self.baseline is None:
            return dict(self.others)
        first = self.baseline
        if not isinstance(first, Versus):
            first = Versus(first, self.goal, reads=self.reads, once=self.once)
        return {self.against: first, **self.others}


@dataclass(frozen=True)
class Against:
    """One comparison of a row: their median, and the median of the ratios ours / theirs."""

    value: float
    ratio: float
    goal: Goal | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None if nothing is asked of this row alone."""
        return None if self.goal is None or self.goal.mean else self.goal.met(self.ratio)


@dataclass(frozen=True)
class Row:
    """What a case came to. `error` says why nothing was measured: the subject is wrong, or failed."""

    group: str
    name: str
    value: float = math.nan
    versus: Mapping[str, Against] = field(default_factory=dict)
    unit: str = "s"
    rounds: int = 0
    error: str = ""
    seconds: float = 0.0  # that the measurement took, compilation and warm-up included

    @property
    def met(self) -> bool | None:
        verdicts = [a.met for a in self.versus.values() if a.met is not None]
        return False if self.error else all(verdicts) if verdicts else None


def measure(case: Case, budget: float = BUDGET) -> Row:
    gc.collect()
    start, collecting = time.perf_counter(), gc.isenabled()
    gc.disable()
    try:
        if case.check is not None:
            case.check()
        row = _measured(case, budget)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).split()) or "wrong result"
        row = Row(case.group, case.name, unit=case.unit, error=why)
    finally:
        if collecting:
            gc.enable()
    return replace(row, seconds=time.perf_counter() - start)


def _measured(case: Case, budget: float) -> Row:
    versus = case.versus()
    clocks: dict[str, _Clock] = {}
    known: dict[str, float] = {}
    for name, v in {"": Versus(case.subject, reads=case.reads), **versus}.items():
        if not callable(v.run):
            known[name] = float(v.run)
        elif v.once or case.once:
            known[name] = _quantity(v.run, v.reads) * v.times
        else:
            clocks[name] = _Clock(v.run, v.reads, v.times)
    rounds = [known | r for r in _rounds(clocks, budget)]
    against = {}
    for name, v in versus.items():
        ratio = statistics.median(r[""] / r[name] for r in rounds)
        against[name] = Against(statistics.median(r[name] for r in rounds), ratio, v.goal, v.note)
    value = statistics.median(r[""] for r in rounds)
    return Row(case.group, case.name, value, against, case.unit, len(rounds))


class _Clock:
    """A function that is warm, and the number of calls that make one measurement."""

    def __init__(self, run: Callable[[], Any], reads: bool, times: float = 1.0) -> None:
        self.run, self.reads, self.times, self.repeat = run, reads, times, 1
        self.short = False
        start = time.perf_counter()
        took = _quantity(run, False)
        if reads:
            return
        took = _quantity(run, False)  # the first may have compiled
        while time.perf_counter() - start < WARM:
            took = _quantity(run, False)
        self.repeat = max(1, int(INNER / max(took, 1e-7)))
        self.short = took < SHORT

    def __call__(self) -> float:
        if self.reads:
            return _quantity(self.run, True) * self.times
        # two baselines may share their inputs: the second would find them in the cache
        if self.short:
            self.run()
        start = time.perf_counter()
        for _ in range(self.repeat):
            self.run()
        return (time.perf_counter() - start) / self.repeat * self.times


def _quantity(run: Callable[[], Any], reads: bool) -> float:
    start = time.perf_counter()
    result = run()
    return float(result) if reads else time.perf_counter() - start


def _rounds(clocks: Mapping[str, _Clock], budget: float) -> list[dict[str, float]]:
    """Each round asks every clock once, beginning with another one."""
    names, rounds, start = list(clocks), [], time.perf_counter()
    if not names:
        return [{}]
    while True:
        first = len(rounds) % len(names)
        rounds.append({name: clocks[name]() for name in names[first:] + names[:first]})
        spent = time.perf_counter() - start
        enough = MIN_ROUNDS if spent < PATIENCE else 3
        if len(rounds) >= MAX_ROUNDS or (len(rounds) >= enough and spent >= budget):
            return rounds


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs))


def means(rows: Iterable[Row]) -> list[Row]:
    """A row for each group with goals on its geometric mean; its value is the mean of the ratios."""
    shared: dict[tuple[str, str], list[Against]] = {}
    for row in rows:
        for name, against in row.versus.items():
            if against.goal is not None and against.goal.mean:
                shared.setdefault((row.group, name), []).append(against)
    made = []
    for (group, name), members in shared.items():
        goal, ratio = members[0].goal, geometric_mean(a.ratio for a in members)
        assert goal is not None
        against = Against(math.nan, ratio, Goal(goal.limit), f"of {len(members)} cases")
        made.append(Row(group, "geometric mean", math.nan, {name: against}))
    return made


def misses(rows: Iterable[Row]) -> Iterator[tuple[Row, str]]:
    """Each row with what it missed: the name of a baseline, or "" for a row that is wrong."""
    for row in rows:
        if row.error:
            yield row, ""
        yield from ((row, name) for name, against in row.versus.items() if against.met is False)


def unmet(rows: list[Row]) -> list[str]:
    """The goals that were missed, in words."""
    missed = []
    for row, name in misses([*rows, *means(rows)]):
        told = row.error
        if name:
            against = row.versus[name]
            told = f"{against.ratio:.3g}, the goal is {against.goal} by {name}"
        missed.append(f"{row.group}, {row.name}: {told}")
    return missed
