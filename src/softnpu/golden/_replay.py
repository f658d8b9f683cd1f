"""`replay`: computes the calls of a recording here and compares."""

from __future__ import annotations

import fnmatch
import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from softnpu.golden import _execute, _load, _values
from softnpu.golden._compare import Difference, Tolerance, compare
from softnpu.golden._store import Recording

#: statuses of a call, from good to bad; those of FAILED make a replay fail
STATUSES = ("same", "within", "random", "skipped", "beyond", "missing", "failed")
FAILED = ("beyond", "missing", "failed")


@dataclass
class Result:
    """One call: its status, the differences of its outputs, and the reason where there are none."""

    process: str
    call: dict[str, Any]
    status: str
    outputs: list[tuple[str, Difference]] = field(default_factory=list)
    reason: str = ""
    computed: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.call.get("name") or self.call["op"]

    def as_json(self) -> dict[str, Any]:
        call = self.call
        return {
            "process": self.process,
            "call": call["seq"],
            "name": self.name,
            "module": call["module"],
            "phase": call["phase"],
            "source": call["source"],
            "status": self.status,
            "reason": self.reason,
            "outputs": [{"name": name, **d.as_json()} for name, d in self.outputs],
        }


def replay(
    path: str | os.PathLike[str],
    *,
    device: str = "npu",
    ops: str | Sequence[str] = "*",
    tolerance: Tolerance | None = None,
    model: Any = None,
    picture: bool = False,
    computed: Callable[[Result], None] | None = None,
) -> list[Result]:
    """The results of all calls in `path`, a recording or a dump of msprobe. `computed` is given each as it comes,
    with the tensors that were computed."""
    if device == "npu":
        importlib.import_module("torch_npu")
    patterns = ops.split(",") if isinstance(ops, str) else list(ops)
    results = []
    for process, run in _load.load(path).items():
        for result in _results(
            process, run, device, patterns, tolerance or Tolerance(), model, picture
        ):
            if computed is not None:
                computed(result)
            result.computed = {}
            results.append(result)
    return results


def _results(
    process: str, run: _load.Run, device: str, patterns: Sequence[str], tolerance: Tolerance,
    model: Any, picture: bool,
) -> Iterator[Result]:  # fmt: skip
    api = None if isinstance(run, Recording) else _execute.Api(run, device, model)
    for call in run.calls:
        names = {call["op"], call["op"].rpartition("::")[2], call["op"].rpartition(".")[2]}
        if not any(fnmatch.fnmatchcase(n, p.strip()) for n in names for p in patterns):
            continue
        result = Result(process, call, "same")
        try:
            if isinstance(run, Recording):
                result.computed, rest = _execute.operator(run, call, device)
                recorded = _values.plain(call["outputs"])
                if rest != recorded:
                    result.status = "beyond"
                    result.reason = f"the operator returns {rest}, in the recording {recorded}"
            else:
                assert api is not None
                result.computed = api.compute(call)
            _compare(run, result, tolerance, picture)
        except _execute.Skip as skip:
            result.status, result.reason = skip.status, str(skip)
        except Exception as error:  # whatever an operator raises is a result of the replay
            result.status = "failed"
            result.reason = "".join(traceback.format_exception_only(error)).strip()
        yield result


def _compare(run: _load.Run, result: Result, tolerance: Tolerance, picture: bool) -> None:
    wanted = run.outputs(result.call)
    for name, entry in wanted:
        here = result.computed.get(name)
        golden = run.tensor(entry)
        if here is None:
            gone = Difference(entry["dtype"], entry["shape"], False, within=False, share=1.0)
            gone.mismatch = "the operator here returns no such tensor"
            result.outputs.append((name, gone))
        else:
            result.outputs.append((name, compare(here, golden, tolerance, picture)))
    differences = [difference for _, difference in result.outputs]
    if not all(d.within for d in differences):
        result.status = "beyond"
    elif result.status == "same" and not all(d.bitwise for d in differences):
        result.status = "within"


def counts(results: Sequence[Result]) -> dict[str, int]:
    return {s: sum(r.status == s for r in results) for s in STATUSES}


def failed(results: Sequence[Result]) -> bool:
    return any(result.status in FAILED for result in results)
