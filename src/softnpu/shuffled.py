"""`softnpu run --shuffle`: the program in other legal orders of its streams, until one gives another result."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

_MAX = 10000  # seeds


def seeds(text: str) -> list[int]:
    """`7` or `1..50`."""
    match = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text)
    first = int(match[1]) if match else 0
    last = int(match[2]) if match and match[2] else first
    if not 1 <= first <= last or last - first >= _MAX:
        raise click.BadParameter(
            f"{text!r} is neither a seed from 1 on nor a range of seeds such as 1..50", param_hint="--shuffle"
        )  # fmt: skip
    return list(range(first, last + 1))


def compare(
    command: Sequence[str], environment: Mapping[str, str], packages: Path, chosen: Sequence[int]
) -> int:
    """Runs the program as launched, then with each seed; 1 and a report at the first that differs."""
    before = environment.get("PYTHONPATH")
    paths = os.pathsep.join([*([before] if before else []), str(packages)])
    usual = {**environment, "PYTHONPATH": paths, "SOFTNPU_SHUFFLE": "0"}
    code, output = _run(command, usual)
    sys.stdout.write(output)
    for seed in chosen:
        other, text = _run(command, {**usual, "SOFTNPU_SHUFFLE": str(seed)})
        if (other, text) == (code, output):
            continue
        click.echo(f"softnpu run: seed {seed} differs from the order of the launches", err=True)
        if other != code:
            click.echo(f"  exit code {other} instead of {code}", err=True)
        lines = difflib.unified_diff(
            output.splitlines(), text.splitlines(), "as launched", f"seed {seed}", lineterm="", n=1
        )
        for _, line in zip(range(20), lines):
            click.echo(f"  {line}", err=True)
        click.echo(f"  again with: softnpu run --shuffle {seed}", err=True)
        return 1
    click.echo(f"softnpu run: {len(chosen)} orders give the same output and exit code", err=True)
    return code


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    return done.returncode, done.stdout
