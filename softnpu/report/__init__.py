"""`softnpu report DIR`: a profile as one HTML page that needs nothing else."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from softnpu.report.data import Profile, find
from softnpu.report.page import render


@click.command(name="report")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page.",
)
def report(directory: Path, output: Path) -> None:
    """Turns the profile in DIRECTORY, or all profiles below it, into one HTML page.

    A profile that was not analysed yet is analysed first.
    """
    found = find(directory)
    if not found:
        raise click.ClickException(f"there is no profile (*_ascend_pt) in {directory}")
    for path in found:
        if not (path / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").exists():
            analyse = importlib.import_module("torch_npu.profiler.profiler").analyse
            analyse(str(path), max_process_number=1, export_type="text")
    profiles = [Profile.read(path) for path in found]
    output.write_text(render(profiles), "utf-8")
    click.echo(f"{output}: {len(profiles)} profile(s), {output.stat().st_size / 1024:.0f} KiB")
