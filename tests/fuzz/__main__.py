"""`python -m tests.fuzz`: the fuzzer as a program. It ends with 1 if it found something."""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("SOFTNPU_QUIET", "1")

from tests.fuzz import isolate, run, sweep, targets
from tests.fuzz.guard import compile_guard


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="how many calls (default 10000)")
    parser.add_argument("--seed", type=int, default=0, help="which calls (default 0)")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so many seconds")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--match", default="", help="only operators whose name contains this")
    parser.add_argument(
        "--what", choices=(*targets.KINDS, "all"), default="all", help="whose operators"
    )
    parser.add_argument(
        "--only", type=int, help="make this call of the seed alone, in this process"
    )
    parser.add_argument(
        "--sweep", choices=sweep.KINDS, help="instead: every argument of every sample in turn"
    )
    parser.add_argument("--patience", type=float, default=30.0, help="seconds until a call hangs")
    parser.add_argument("--no-guard", action="store_true", help="without guard pages")
    given = parser.parse_args()
    run.prepare()
    chosen = [given.what] if given.what != "all" else list(targets.KINDS)
    names = [name for kind in chosen for name in targets.KINDS[kind]()]
    names = [name for name in names if given.match in name]
    if not names:
        parser.error(f"no operator's name contains {given.match!r}")
    if given.only is not None:
        call = run.Call.drawn(given.seed, given.only, names)
        print(call.program())
        print(call.judged())
        return 0
    guard = None if given.no_guard else compile_guard()
    listed = None
    if given.sweep:
        listed = sweep.calls(given.sweep, names, given.seed)[: given.calls]
        given.calls = len(listed)
    plan = run.Plan(
        given.seed, given.calls, given.seconds, given.workers, names, given.patience, guard, listed
    )
    began = time.monotonic()
    result = plan.run(Announcer())
    report(result, plan, time.monotonic() - began)
    return 1 if result.findings else 0


class Announcer:
    """Tells each finding when it is made; it is reduced and printed at the end."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self, result: run.Result) -> None:
        for finding in list(result.findings.values())[self.told :]:
            what = f"{finding.outcome.kind} in {finding.call.target}, call {finding.index}"
            print(f"{what}: {finding.outcome.message[:200]}", file=sys.stderr, flush=True)
            self.told += 1


def report(result: run.Result, plan: run.Plan, seconds: float) -> None:
    for number, finding in enumerate(result.findings.values(), 1):
        kind = finding.outcome.kind
        smaller = isolate.minimized(finding.call, kind, plan.guard)
        print(
            f"\n--- finding {number}: {kind} in {finding.call.target}, {finding.times} times; call {finding.index}"
        )
        print(f"# {finding.outcome.message}")
        print(smaller.program(), flush=True)
    for finding in result.alike:
        print(
            f"\n--- on the CPU device too: {finding.outcome.kind} in {finding.call.target}, call {finding.index}"
        )
        print(finding.call.program(), flush=True)
    shown = ", ".join(f"{kind} {count}" for kind, count in sorted(result.counts.items()))
    pages = "on guard pages" if plan.guard else "without guard pages"
    print(
        f"\n{result.calls} calls of {len(result.by_target)} operators in {seconds:.0f} s, seed {plan.seed}, {pages}: "
        f"{shown or 'none'}; {len(result.findings)} findings"
    )


if __name__ == "__main__":
    sys.exit(main())
