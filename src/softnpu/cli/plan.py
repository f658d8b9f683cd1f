"""`softnpu plan`: the predicted step time and memory of a named model on many ranks, and calibration by a real profile."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from softnpu import chips, settings

_MOST_RANKS = 1 << 20
_FILE = click.Path(dir_okay=False, path_type=Path)


def _ranks(_context: click.Context, option: click.Parameter, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= _MOST_RANKS for part in parts):
        raise click.BadParameter(
            f"must be numbers such as 8 or 8,64, but is {text!r}", param=option
        )
    return [int(part) for part in parts]


def _names(_context: click.Context, _option: click.Parameter, typed: str) -> list[str]:
    from softnpu.plan.clock import architectures

    return [name for name in architectures.names() if name.startswith(typed)]


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    shell_complete=_names,
    help="A model by name, or several; a wrong name lists them.",
)
@click.option(
    "--ranks", default="8", show_default=True, callback=_ranks, help="Numbers of ranks: 8,64,512."
)
@click.option(
    "--soc",
    help="The chip, as SOFTNPU_SOC (`softnpu chips` lists them).",
    shell_complete=lambda _context, _option, typed: [n for n in chips.names() if typed in n],
)
@click.option("--page", type=_FILE, help="Step time, MFU and memory against ranks, as HTML.")
@click.option("--json", "json_file", type=_FILE, help="The same as JSON.")
@click.option(
    "--calibrate",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Fit the clock to the profiles of a real card in this directory.",
)
@click.option(
    "--calibration",
    type=_FILE,
    default=Path("softnpu_calibration.json"),
    show_default=True,
    help="The file that --calibrate writes.",
)
def plan(
    models: tuple[str, ...],
    ranks: list[int],
    soc: str | None,
    page: Path | None,
    json_file: Path | None,
    calibrate: Path | None,
    calibration: Path,
) -> None:
    """Predicts the training step of a model: its time, MFU and memory a rank, with the fastest layout that fits.

    Times follow public figures of the chips; docs/plan-clock.md says how, and how far off they are.

    \b
        softnpu plan --model llama3-70b --ranks 8,64,512 --soc Ascend910B1 --page sweep.html
        softnpu plan --calibrate PROFILES --calibration card.json
    """
    from softnpu.plan import sweep, timing

    chosen = soc or settings.read().soc
    if not models and calibrate is None:
        raise click.UsageError("say what to plan: --model NAME, or --calibrate DIRECTORY")
    try:
        if calibrate is not None:
            click.echo("\n".join(timing.calibrate(calibrate, chosen, calibration)))
            return
        chip = timing.chip_of(chosen)
        series = {name: sweep.estimate(name, ranks, chip) for name in models}
        for line in timing.sweep_lines(series):
            click.echo(line)
        if page is not None:
            sweep.write_page(page, f"Plan of {', '.join(models)}", series, chosen)
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None
    if json_file is not None:
        points = {name: [asdict(point) for point in found] for name, found in series.items()}
        json_file.write_text(json.dumps({"soc": chosen, "models": points}), "utf-8")
