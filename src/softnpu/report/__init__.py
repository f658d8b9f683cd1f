"""`softnpu report DIR`: a profile as one HTML page that needs nothing else."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import click

from softnpu.report.data import Profile, Unreadable, find
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
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="What the page shows, but the timeline, for programs to read.",
)
def report(directory: Path, output: Path, as_json: bool = False) -> None:
    """Turns the profile in DIRECTORY, or all profiles below it, into one HTML page.

    A profile that was not analyzed yet is analyzed first.
    """
    found = find(directory)
    if not found:
        raise click.ClickException(f"there is no profile (*_ascend_pt) in {directory}")
    try:
        for path in found:
            if not (path / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").exists():
                from torch_npu.profiler.profiler import analyse

                with contextlib.redirect_stdout(sys.stderr):  # it says what it does
                    analyse(str(path), max_process_number=1, export_type="text")
        profiles = [Profile.read(path) for path in found]
    except (Unreadable, OSError, RuntimeError) as wrong:
        raise click.ClickException(str(wrong)) from None
    output.write_text(render(profiles), "utf-8")
    if as_json:
        parts = ("name", "kernels", "operators", "communications", "steps", "memory")
        tables = [{part: getattr(profile, part) for part in parts} for profile in profiles]
        click.echo(json.dumps({"page": str(output), "profiles": tables}, indent=2))
        return
    click.echo(f"{output}: {len(profiles)} profile(s), {output.stat().st_size / 1024:.0f} KiB")
