"""`diff`: the first operator that two runs of a program compute differently from the same inputs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from softnpu.golden import _load, _values
from softnpu.golden._compare import Difference, Tolerance, compare

Call = dict[str, Any]


@dataclass
class Pair:
    """The same call in both runs."""

    process: str
    a: Call
    b: Call
    inputs: list[tuple[str, Difference]] = field(default_factory=list)
    outputs: list[tuple[str, Difference]] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)

    @property
    def inputs_agree(self) -> bool:
        return not self.attributes and all(d.within for _, d in self.inputs)

    @property
    def outputs_agree(self) -> bool:
        return all(d.within for _, d in self.outputs)

    def as_json(self) -> dict[str, Any]:
        return {
            "process": self.process,
            "op": self.b["op"],
            "call_a": self.a["seq"],
            "call_b": self.b["seq"],
            "module": self.b["module"],
            "phase": self.b["phase"],
            "source": self.b["source"],
            "attributes": self.attributes,
            "inputs": [{"name": n, **d.as_json()} for n, d in self.inputs],
            "outputs": [{"name": n, **d.as_json()} for n, d in self.outputs],
        }


@dataclass
class Findings:
    """`first`: outputs differ though inputs agree. `attributes`: the first call with other attributes."""

    compared: int = 0
    first: Pair | None = None
    attributes: Pair | None = None
    differing: int = 0  # calls whose outputs differ, for whatever reason
    only_a: Counter[str] = field(default_factory=Counter)
    only_b: Counter[str] = field(default_factory=Counter)
    processes: list[str] = field(default_factory=list)

    @property
    def alike(self) -> bool:
        return self.differing == 0 and self.attributes is None

    def as_json(self) -> dict[str, Any]:
        return {
            "compared": self.compared,
            "differing": self.differing,
            "first": self.first and self.first.as_json(),
            "attributes": self.attributes and self.attributes.as_json(),
            "only_a": dict(self.only_a),
            "only_b": dict(self.only_b),
        }


def diff(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, tolerance: Tolerance | None = None
) -> Findings:
    """Compares two recordings (or dumps of msprobe) of one program, call by call, in the order of `b`."""
    runs_a, runs_b = _load.load(a), _load.load(b)
    if set(runs_a) != set(runs_b):
        raise ValueError(
            f"{a} has the processes {sorted(runs_a)}, but {b} has {sorted(runs_b)}: these are not the same job"
        )
    found = Findings(processes=sorted(runs_b))
    for process in runs_b:
        _walk(found, process, runs_a[process], runs_b[process], tolerance or Tolerance())
    return found


def _walk(
    found: Findings, process: str, run_a: _load.Run, run_b: _load.Run, tolerance: Tolerance
) -> None:
    calls_a, calls_b = _keyed(run_a.calls), _keyed(run_b.calls)
    found.only_a.update(c["op"] for k, c in calls_a.items() if k not in calls_b)
    found.only_b.update(c["op"] for k, c in calls_b.items() if k not in calls_a)
    uneven = {
        k[:-1] for k in calls_a.keys() ^ calls_b.keys()
    }  # which is whose counterpart is not sure there
    for key, call in calls_b.items():
        if key not in calls_a:
            continue
        pair = Pair(process, calls_a[key], call)
        pair.outputs = _differences(run_a, run_b, pair, "outputs", tolerance)
        found.compared += 1
        if pair.outputs_agree and found.attributes is not None:
            continue
        pair.attributes = [] if key[:-1] in uneven else _attributes(pair)
        if pair.attributes and found.attributes is None:
            found.attributes = pair
        if pair.outputs_agree:
            continue
        found.differing += 1
        if found.first is None:
            pair.inputs = _differences(run_a, run_b, pair, "inputs", tolerance)
            if pair.inputs_agree:
                found.first = pair


def _keyed(calls: list[Call]) -> dict[tuple[Any, ...], Call]:
    """By module, phase, operator and how often it was called there: runs that differ elsewhere still match."""
    count: Counter[tuple[Any, ...]] = Counter()
    found: dict[tuple[Any, ...], Call] = {}
    for call in calls:
        if "name" in call:  # msprobe's names are unique
            found[(call["name"],)] = call
            continue
        place = (call["module"], call["phase"], call["op"], call["overload"])
        key = *place, count[place]
        found[key] = call
        count[place] += 1
    return found


def _differences(
    run_a: _load.Run, run_b: _load.Run, pair: Pair, part: str, tolerance: Tolerance
) -> list[tuple[str, Difference]]:  # fmt: skip
    entries_a = dict(getattr(run_a, part)(pair.a))
    entries_b = dict(getattr(run_b, part)(pair.b))
    found = []
    for name in sorted({*entries_a, *entries_b}):
        one, other = entries_a.get(name), entries_b.get(name)
        if one is None or other is None:
            side = "b" if one is None else "a"
            known = (one or other or {})["dtype"], (one or other or {})["shape"]
            text = f"only {side} has it"
            found.append((name, Difference(*known, False, mismatch=text, within=False, share=1.0)))
        elif run_a.source == run_b.source == "recording" and one["tensor"] == other["tensor"]:
            found.append((name, Difference(one["dtype"], one["shape"], True)))
        else:
            found.append((name, compare(run_b.tensor(other), run_a.tensor(one), tolerance)))
    return found


def _attributes(pair: Pair) -> list[str]:
    """What differs besides tensors; a dtype that follows the run's precision is no difference of the program."""
    a, b = ({**dict(enumerate(c["args"])), **c["kwargs"]} for c in (pair.a, pair.b))
    found = []
    for name in {**a, **b}:
        one, other = _values.plain(a.get(name)), _values.plain(b.get(name))
        if one != other and not (_is_dtype(one) and _is_dtype(other)):
            found.append(f"argument {name}: {one!r} in a, {other!r} in b")
    return found


def _is_dtype(value: Any) -> bool:
    return isinstance(value, dict) and "dtype" in value
