"""`make bench`: every benchmark, those of a file, or those whose group or name contains a text.

python -m benchmarks [--case TEXT] [--out FILE] [--threads N] [--budget SECONDS] [--strict]
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Iterator

os.environ.setdefault("SOFTNPU_QUIET", "1")

import click
import torch
from rich.console import Console

import benchmarks
import torch_npu  # noqa: F401
from benchmarks import harness, record, table


def chosen(text: str) -> Iterator[harness.Case]:
    """The cases one by one: what a case needs comes into being when it is its turn, and goes after it.

    `text` is a file, part of a group or a name, or both: `kernels/gelu`.
    """
    files = sorted(
        f.name for f in pkgutil.iter_modules(benchmarks.__path__) if f.name != "__main__"
    )
    file, _, rest = text.partition("/")
    if file in files:
        files, text = [file], rest
    for file in files:
        module = importlib.import_module(f"benchmarks.{file}")
        for case in module.cases() if hasattr(module, "cases") else ():
            if text in case.group or text in case.name:
                yield case


@click.command(help=__doc__)
@click.option("--case", "text", default="", help="A file, a text in group or name, or FILE/TEXT.")
@click.option("--out", default=None, help="Write machine, versions and numbers as JSON.")
@click.option(
    "--threads", type=int, default=None, help="Threads of PyTorch's kernels, on all sides."
)
@click.option("--budget", default=harness.BUDGET, help="Seconds of rounds that a case may take.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a goal is not met.")
def main(text: str, out: str | None, threads: int | None, budget: float, strict: bool) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    # What shall be compiled is compiled, however many cases share its code: else it would run eagerly.
    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    about, start = record.machine(), time.perf_counter()
    rows, quiet = [], Console(stderr=True)
    with quiet.status("measuring") as status:
        for case in chosen(text):
            status.update(f"{len(rows) + 1}: {case.group}, {case.name}")
            rows.append(harness.measure(case, budget))
            if out:  # as far as it came
                record.write(out, about, rows)
    if not rows:
        raise click.ClickException(f"no case has {text!r} in its file, group or name")
    report(about, rows, time.perf_counter() - start)
    sys.exit(1 if strict and harness.unmet(rows) else 0)


def report(about: dict[str, object], rows: list[harness.Row], seconds: float) -> None:
    wide = None if sys.stdout.isatty() else 200  # a file or a pipe has no width of its own
    console = Console(width=wide)
    console.print(table.terminal(rows))
    console.print(
        f"{about['cpu']}, {about['cores']} cores, {about['capability']}: copies {about['copy_gb_per_s']} GB/s, "
        f"multiplies {about['fp32_gflop_per_s']} GFLOP/s in fp32; load {about['load']:.1f} at the start.\n"
        f"{len(rows)} cases in {seconds:.0f} s. In brackets: our time by theirs, less is better."
    )
    slowest = sorted(rows, key=lambda r: -r.seconds)[:5]
    told = "; ".join(f"{r.group}, {r.name} {r.seconds:.0f} s" for r in slowest)
    console.print(f"Measuring took longest for {told}.", markup=False)
    for line in harness.unmet(rows):
        console.print(f"not met: {line}", markup=False)


if __name__ == "__main__":
    main()
