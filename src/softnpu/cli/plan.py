"""`softnpu plan`: memory and step time of a program that is not computed, or of a named model; calibration of the clock."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from softnpu import chips, settings

_MAX_RANKS = 1 << 20
_FILE = click.Path(dir_okay=False, path_type=Path)


_CALIBRATION = Path("softnpu_calibration.json")


def _numbers(least: int, option: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isdecimal() and len(p) < 9 and least <= int(p) <= _MAX_RANKS for p in parts):
        raise click.BadParameter(
            f"must be numbers such as 8 or 8,64, but is {text!r}", param=option
        )
    return list(dict.fromkeys(int(part) for part in parts))


def _worlds(_context: click.Context, option: click.Parameter, text: str | None) -> list[int] | None:
    return _numbers(1, option, text)


def _ranks(_context: click.Context, option: click.Parameter, text: str) -> list[int]:
    return _numbers(0, option, text) or [0]


def _names(_context: click.Context, _option: click.Parameter, typed: str) -> list[str]:
    from softnpu.plan.clock import architectures

    return [name for name in architectures.names() if name.startswith(typed)]


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.option(
    "--model",
    "models",
    multiple=True,
    shell_complete=_names,
    help="Instead of a program, a model by name, or several; a wrong name lists them.",
)
@click.option(
    "--ranks",
    "worlds",
    callback=_worlds,
    help="Numbers of ranks: 8,64,512.  [default: 8 for a model; a program runs alone]",
)
@click.option(
    "--rank",
    "chosen",
    default="0",
    show_default=True,
    callback=_ranks,
    help="The ranks of a program to run, each in a process of its own: 0,7.",
)
@click.option(
    "--soc",
    help="The chip, as SOFTNPU_SOC (`softnpu chips` lists them).",
    shell_complete=lambda _context, _option, typed: [n for n in chips.names() if typed in n],
)
@click.option(
    "--routing", help="How tokens choose experts, as SOFTNPU_ROUTING: balanced, or skew=1.5."
)
@click.option(
    "--page", type=_FILE, help="The report, and step time, MFU and memory against ranks, as HTML."
)
@click.option("--json", "json_file", type=_FILE, help="The same as JSON, with each kernel.")
@click.option(
    "--profile",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a profile with the predicted times of a program's step into this directory.",
)
@click.option(
    "--calibrate",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Fit the clock to the profiles of a real card in this directory.",
)
@click.option(
    "--calibration",
    type=_FILE,
    help=f"The file that --calibrate writes, {_CALIBRATION} by default; a plan of a program uses it.",
)
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.argument("program", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def plan(
    models: tuple[str, ...], worlds: list[int] | None, chosen: list[int], soc: str | None, routing: str | None,
    page: Path | None, json_file: Path | None, profile: Path | None, calibrate: Path | None,
    calibration: Path | None, module: bool, program: str | None, arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Predicts memory and time of a training step, without computing it.

    PROGRAM, a Python script, runs with its ARGUMENTS for shapes alone, one process for each --rank of a job of --ranks
    ranks: peak memory by kind and by line, whether it fits, what would help, step time, MFU, exposed communication. Its
    output and exit code stay its own; the report goes to stderr.

    With --model, the step of a named model instead, with the fastest layout that fits. docs/plan.md says what is exact;
    docs/plan-clock.md how times come about, and how far off they are.

    \b
        softnpu plan train.py --batch 8
        softnpu plan --ranks 1024 --rank 0,7 --soc Ascend910B1 --json plan.json --page plan.html train.py
        softnpu plan --model llama3-70b --ranks 8,64,512 --soc Ascend910B1 --page sweep.html
        softnpu plan --calibrate PROFILES --calibration card.json
    """
    from softnpu.cli import _plan_program
    from softnpu.plan import sweep, timing

    soc = soc or settings.read().soc
    if (program is not None) + bool(models) + (calibrate is not None) != 1:
        raise click.UsageError(
            "say what to plan: a program, --model NAME, or --calibrate DIRECTORY, one of them"
        )
    try:
        if program is not None:
            wanted = _plan_program.Wanted(
                program, arguments, module, soc, worlds, chosen, routing, json_file, page, profile, calibration,
            )  # fmt: skip
            sys.exit(_plan_program.plan(wanted))
        _refuse(calibration=None if calibrate else calibration, profile=profile, routing=routing)
        if calibrate is not None:
            click.echo("\n".join(timing.calibrate(calibrate, soc, calibration or _CALIBRATION)))
            return
        chip = timing.chip_of(soc)
        series = {name: sweep.estimate(name, worlds or [8], chip) for name in models}
        for line in timing.sweep_lines(series):
            click.echo(line)
        if page is not None:
            sweep.write_page(page, f"Plan of {', '.join(models)}", series, soc)
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None
    if json_file is not None:
        points = {name: [asdict(point) for point in found] for name, found in series.items()}
        json_file.write_text(json.dumps({"soc": soc, "models": points}), "utf-8")


def _refuse(**given: object) -> None:
    """Options that a program alone has."""
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"--{name} needs a program")
