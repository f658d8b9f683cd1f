"""`softnpu plan prog.py`: runs the ranks, then prints and writes what was found."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from softnpu import chips
from softnpu.plan import page, ranks, report, timing
from softnpu.plan.clock import Calibration

_NOT_COMPUTED = {"SOFTNPU_COMPUTE": "0"}


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    program: str
    arguments: tuple[str, ...]
    module: bool
    soc: str
    worlds: list[int] | None
    ranks: list[int]
    routing: str | None
    json_file: Path | None
    page: Path | None
    profile: Path | None
    calibration: Path | None


def plan(wanted: Wanted) -> int:
    """The exit code: the program's, or 1 if there is nothing to report, or no time can be told."""
    chip = timing.chip_of(wanted.soc)
    worlds = wanted.worlds or [1]
    ranks.check(chip, worlds, wanted.ranks)
    calibration = timing.read_calibration(wanted.calibration, chip.name)
    job = ranks.Job(
        ranks.python_command(wanted.program, wanted.module, wanted.arguments),
        chip,
        _settings(wanted, chip),
        wanted.worlds is not None,
    )
    codes: list[int] = []
    reports: list[dict[str, Any]] = []
    for data, said in _each(job, worlds, wanted, calibration):
        codes.append(data["exit_code"])
        reports.append(data)
        for line in said:
            click.echo(line, err=True)
    if not reports:
        return ranks.INTERRUPTED
    found = report.as_json(wanted.program, chip.name, reports)
    if len(worlds) > 1:
        for line in report.rows(found["jobs"]):
            click.echo(line, err=True)
    if wanted.json_file is not None:
        wanted.json_file.write_text(json.dumps(found), "utf-8")
    if wanted.page is not None:
        page.write(wanted.page, found)
    failed = next((code for code in codes if code), 0)
    return failed or int(any(one["step_seconds"] is None for one in reports))


def _settings(wanted: Wanted, chip: chips.Chip) -> dict[str, str]:
    found = {"SOFTNPU_SOC": chip.name, **_NOT_COMPUTED}
    if wanted.worlds is not None:
        devices = int(chip.links.get("node_devices", 1))
        found["SOFTNPU_DEVICES"] = str(max(1, min(devices, max(wanted.worlds))))
    if wanted.routing is not None:
        found["SOFTNPU_ROUTING"] = wanted.routing
    return found


def _each(
    job: ranks.Job, worlds: Sequence[int], wanted: Wanted, calibration: Calibration | None
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Every rank of every job with its lines; after Ctrl-C, what there was until then."""
    pairs = [(world, rank) for world in worlds for rank in wanted.ranks]
    for number, (world, rank) in enumerate(pairs, 1):
        with _progress(f"planning rank {rank} of {world} ({number} of {len(pairs)})") as say:
            ran = ranks.run_rank(job, world, rank, say)
        data, prediction = report.of_rank(ran, job.chip, world, rank, calibration)
        said = report.lines(data, prediction)
        if wanted.profile is not None and prediction is not None and ran.recording is not None:
            path = timing.profile(wanted.profile, ran.recording.tasks, prediction, job.chip.name, rank)  # fmt: skip
            said.append(f"  predicted profile: {path}")
        yield data, said
        if ran.code == ranks.INTERRUPTED:
            return


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    """A line on a terminal; nothing where nobody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _words: None
        return
    with console.status(what) as status:
        yield lambda words: status.update(f"{what}: {words}")
