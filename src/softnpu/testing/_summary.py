"""`--npu-summary`: what the tests used of the device. Each test's part travels with its report, from any process."""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any

import pytest

from softnpu._observe import RunRecorder, SharedTrace
from softnpu.testing._fixtures import RANKS

_BY_CHIP = re.compile(
    r"on an? (chip|Atlas|Ascend)"
)  # what a refusal expects that no argument can mend
_TESTS = 20


class SummaryRecorder(RunRecorder):
    """Counts what this process does between two tests."""

    def __init__(self) -> None:
        from torch_npu import _errors

        errors: Any = _errors
        super().__init__(Path())
        self.chip: collections.Counter[str] = collections.Counter()
        self.trace = SharedTrace(self.device)
        self._listen()
        make = errors.operator_error

        def operator_error(operator: str, bad: Any) -> RuntimeError:
            if _BY_CHIP.match(bad.expected):
                self.chip[operator] += 1
            return make(operator, bad)

        errors.operator_error = operator_error

    def begin(self) -> None:
        with self.lock:
            self._count()
            self.reset()
            self.chip.clear()
            if self.device.started():
                import torch

                for index in range(self.device.device_count()):
                    torch.npu.reset_peak_memory_stats(index)

    def taken(self) -> dict[str, Any]:
        with self.lock:
            self._count()
            peaks: dict[str, int] = {}
            if self.device.started():
                for index in range(self.device.device_count()):
                    peak = self.device.memory_stats(index)["allocated_bytes"]["all"]["peak"]
                    if peak:
                        peaks[str(index)] = peak
            return {
                "operators": dict(self.operators),
                "peak": peaks,
                "errors": dict(self.errors),
                "chip": dict(self.chip),
            }


def attach(report: pytest.TestReport, item: pytest.Item, recorder: SummaryRecorder) -> None:
    """At the end of a test: its part, with those of the ranks that it started."""
    found = recorder.taken()
    if RANKS in item.stash:
        for part in item.stash[RANKS].summaries:
            for key in ("operators", "errors", "chip"):
                found[key] = dict(collections.Counter(found[key]) + collections.Counter(part[key]))
            for device, peak in part["peak"].items():
                found["peak"][device] = max(peak, found["peak"].get(device, 0))
    report.npu = found  # type: ignore[attr-defined]


class Summary:
    """Gathers the parts and writes them under the tests' results."""

    def __init__(self) -> None:
        self.total: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.peaks: dict[str, int] = {}

    def add(self, report: Any) -> None:
        part = getattr(report, "npu", None)
        if part is None:
            return
        for key in ("operators", "errors", "chip"):
            self.total[key].update(part[key])
        if part["peak"] and part["operators"]:
            self.peaks[report.nodeid] = max(part["peak"].values())

    def write(self, terminal: Any, soc: str) -> None:
        terminal.section(f"NPU summary ({soc}, emulated)")
        counts = self.total["operators"]
        terminal.line(f"operators used: {len(counts)}, {sum(counts.values())} calls")
        for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            terminal.line(f"  {count:8} {name}")
        terminal.line("peak memory by test:")
        ranked = sorted(self.peaks.items(), key=lambda pair: -pair[1])
        for name, peak in ranked[:_TESTS]:
            terminal.line(f"  {peak / 2**20:8.2f} MiB {name}")
        if len(ranked) > _TESTS:
            terminal.line(f"  {len(ranked) - _TESTS} tests with less")
        self._list(terminal, "errors", "constraints broken (the card refuses too)")
        self._list(terminal, "chip", f"operators that {soc} does not have")

    def _list(self, terminal: Any, key: str, title: str) -> None:
        counts = self.total[key]
        terminal.line(f"{title}: {len(counts) or 'none'}")
        for text, count in counts.most_common():
            terminal.line(f"  {count:8} {text}")
