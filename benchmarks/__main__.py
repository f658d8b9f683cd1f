"""`make bench`: every benchmark, or those whose group or name contains --case.

python -m benchmarks [--case TEXT] [--out FILE] [--threads N] [--strict]
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

os.environ.setdefault("SOFTNPU_QUIET", "1")

import click
import torch

import benchmarks
import torch_npu  # noqa: F401
from benchmarks import harness


@click.command(help=__doc__)
@click.option(
    "--case", "text", default="", help="Only cases whose group or name contains this text."
)
@click.option("--out", default=None, help="Write machine, versions and numbers as JSON.")
@click.option(
    "--threads", type=int, default=None, help="Threads of PyTorch's kernels, on both sides."
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a goal is not met.")
def main(text: str, out: str | None, threads: int | None, strict: bool) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    cases = []
    for file in pkgutil.iter_modules(benchmarks.__path__):
        module = (
            importlib.import_module(f"benchmarks.{file.name}") if file.name != "__main__" else None
        )
        if hasattr(module, "cases"):
            cases += [c for c in module.cases() if text in c.group or text in c.name]
    if not cases:
        raise click.ClickException(f"no case has {text!r} in its group or name")
    missed = harness.unmet(harness.run(cases, out))
    for line in missed:
        print(f"not met: {line}")
    sys.exit(1 if missed and strict else 0)


if __name__ == "__main__":
    main()
