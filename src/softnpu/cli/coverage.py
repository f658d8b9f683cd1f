"""`softnpu coverage`: which of upstream's documented names work."""

from __future__ import annotations

import collections
import importlib.resources
import json

import click

from softnpu.cli import _output


@click.command()
@click.option(
    "--absent",
    is_flag=True,
    help="List the documented names that are absent or partial, with the reason.",
)
@_output.json_option
def coverage(absent: bool, as_json: bool) -> None:
    """Which of upstream's documented names work."""
    # Found by introspection when the tree was made (tools/coverage.py); a test keeps it true.
    documented = json.loads(
        importlib.resources.files("softnpu").joinpath("coverage.json").read_text("utf-8")
    )
    if as_json:
        _output.show_json([e for e in documented if not absent or e["status"] != "works"])
        return
    if absent:
        table = _output.table("absent and partial", "name", "state", "reason")
        for entry in documented:
            if entry["status"] != "works":
                table.add_row(entry["name"], entry["status"], entry["note"])
        _output.show(table)
        return
    table = _output.table("documented names", "table", "works", "partial", "absent")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for entry in documented:
        counts[entry["table"]][entry["status"]] += 1
        counts["all"][entry["status"]] += 1
    for name in [*(n for n in counts if n != "all"), "all"]:
        table.add_row(name, *(str(counts[name][s]) for s in ("works", "partial", "absent")))
    _output.show(table)
