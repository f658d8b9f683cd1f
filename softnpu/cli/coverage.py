"""`softnpu coverage`: which of upstream's documented names work."""

from __future__ import annotations

import collections
import importlib
import sys
from pathlib import Path

import click

from softnpu.cli import _output

_ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option(
    "--absent",
    is_flag=True,
    help="List the documented names that are absent or partial, with the reason.",
)
@_output.json_option
def coverage(absent: bool, as_json: bool) -> None:
    """Which of upstream's documented names work (needs a source checkout)."""
    if not (_ROOT / "api" / "upstream.json").exists():
        raise click.ClickException(
            "the list of upstream's names is only in a source checkout of softnpu"
        )
    sys.path.insert(0, str(_ROOT))
    documented = importlib.import_module("tools.coverage").seeds()
    if as_json:
        keys = ("name", "table", "status", "note")
        wanted = (e for e in documented if not absent or e.status != "works")
        _output.show_json([{key: getattr(e, key) for key in keys} for e in wanted])
        return
    if absent:
        table = _output.table("absent and partial", "name", "state", "reason")
        for entry in documented:
            if entry.status != "works":
                table.add_row(entry.name, entry.status, entry.note)
        _output.show(table)
        return
    table = _output.table("documented names", "table", "works", "partial", "absent")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for entry in documented:
        counts[entry.table][entry.status] += 1
        counts["all"][entry.status] += 1
    for name in [*(n for n in counts if n != "all"), "all"]:
        table.add_row(name, *(str(counts[name][s]) for s in ("works", "partial", "absent")))
    _output.show(table)
