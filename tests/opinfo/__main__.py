"""`make opinfo`: the whole operator database on the npu against the cpu, with a progress bar and a table.

python -m tests.opinfo [--only TEXT] [--jobs N] [--out FILE]
"""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import sys

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.opinfo.worker import work

GOAL = 0.99


def _chunks(keys: list[str], jobs: int) -> list[list[str]]:
    return [keys[i::jobs] for i in range(jobs)]


@click.command(help=__doc__)
@click.option("--only", default="", help="Only pairs whose key contains this text.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True)
@click.option("--out", default=None, help="Write the outcome of every pair as JSON.")
def main(only: str, jobs: int, out: str | None) -> None:
    from tests.opinfo.compare import exceptions, pairs

    keys = [p.key for p in pairs() if only in p.key]
    table = exceptions()
    outcomes: dict[str, tuple[str, str]] = {}
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pending = [c for c in _chunks(keys, jobs) if c]
    workers = [(context.Process(target=work, args=(c, queue), daemon=True), c) for c in pending]
    for process, _ in workers:
        process.start()
    console = Console(stderr=True)
    current: dict[str, None] = {}
    with Progress(console=console) as progress:
        bar = progress.add_task("operators", total=len(keys))
        while len(outcomes) < len(keys):
            try:
                key, state, text = queue.get(timeout=2)
            except Exception:
                for index, (process, chunk) in enumerate(workers):
                    if process.is_alive():
                        continue
                    left = [k for k in chunk if k not in outcomes]
                    if not left:
                        continue
                    crashed = next((k for k in left if k in current), left[0])
                    outcomes[crashed] = ("crashed", f"exit code {process.exitcode}")
                    progress.advance(bar)
                    left = [k for k in left if k != crashed]
                    fresh = context.Process(target=work, args=(left, queue), daemon=True)
                    fresh.start()
                    workers[index] = (fresh, left)
                continue
            if state == "started":
                current[key] = None
                continue
            current.pop(key, None)
            outcomes[key] = (state, text)
            progress.advance(bar)
    _report(outcomes, table)
    if out:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(outcomes, file, indent=1)
    compared = [k for k, (s, _) in outcomes.items() if s != "unsupported"]
    good = [k for k in compared if outcomes[k][0] == "equal"]
    unexcused = [
        k
        for k in compared
        if outcomes[k][0] != "equal" and not (table.get(k) or table.get(k.split("/")[0]))
    ]
    share = len(good) / max(len(compared), 1)
    print(
        f"{len(good)} of {len(compared)} pairs equal ({share:.2%}); {len(unexcused)} without a stated reason"
    )
    sys.exit(0 if share >= GOAL and not unexcused else 1)


def _report(outcomes: dict[str, tuple[str, str]], table: dict[str, str]) -> None:
    counts = collections.Counter(state for state, _ in outcomes.values())
    view = Table(title="operator database, npu against cpu")
    for column in ("pair", "outcome", "reason or difference"):
        view.add_column(column, overflow="fold")
    for key, (state, text) in sorted(outcomes.items()):
        if state in ("differs", "crashed"):
            view.add_row(key, state, table.get(key) or table.get(key.split("/")[0]) or text)
    console = Console()
    console.print(view)
    console.print(", ".join(f"{n} {state}" for state, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
