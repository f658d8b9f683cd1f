"""`softnpu golden`: record what operators compute, replay it here, pack the recorder for a machine with a card."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from softnpu.cli import _output

_PACKED = ("__init__.py", "_version.py")


@click.group()
def golden() -> None:
    """Golden data: what operators computed on one machine, compared with what they compute on another."""


@golden.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("golden"),
              show_default=True, help="The directory of the recording.")  # fmt: skip
@click.option(
    "--ops", default="npu_*", show_default=True, help="Patterns of operators, between commas."
)
@click.option("--modules", is_flag=True, help="Record the calls of modules too.")
@click.option("--limit", default="4GiB", show_default=True, help="Bytes of tensors.")
@click.option("--each", type=click.IntRange(min=1), help="At most so many calls of one operator.")
@click.option("--resume", is_flag=True, help="Continue what an earlier run recorded.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def record(
    output: Path, module: bool, program: str, arguments: tuple[str, ...], **options: Any
) -> None:
    """Runs PROGRAM with its ARGUMENTS and records its operators.

    The same as `python -m softnpu.golden record`, which needs torch alone. Each rank of a job that torchrun starts
    records into a directory of its own.
    """
    from softnpu.golden import __main__ as main
    from softnpu.golden import _program, _record

    if not module and not Path(program).exists():
        raise click.BadParameter(f"{program!r} is not a file", param_hint="PROGRAM")
    with contextlib.ExitStack() as stack:
        try:
            recording = stack.enter_context(_record.record(output, **options))
        except (FileExistsError, ValueError) as wrong:
            raise click.ClickException(str(wrong)) from None
        stack.callback(lambda: click.echo(main.said(recording, output), err=True))
        _program.run_program(program, arguments, module)


def tolerance_options(command: Any) -> Any:
    """Shared with `softnpu diff`; what is not given depends on the dtype."""
    for option in (
        click.option("--share", type=click.FloatRange(0, 1), help="Share of elements that may lie beyond."),
        click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance."),
        click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance."),
    ):  # fmt: skip
        command = option(command)
    return command


@golden.command()
@click.argument("recording", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--ops", default="*", show_default=True, help="Patterns of operators, between commas."
)
@click.option("--device", type=click.Choice(["npu", "cpu"]), default="npu", show_default=True,
              help="Where to compute.")  # fmt: skip
@tolerance_options
@click.option("--bitwise", is_flag=True, help="Nothing but the same bits will do.")
@click.option(
    "--model", help="MODULE:FUNCTION that returns the model, for module-level dumps of msprobe."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page.")
@click.option("--msprobe", type=click.Path(file_okay=False, path_type=Path),
              help="Write both sides as dumps that `msprobe compare` reads.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="List calls with the same bits too.")
@_output.json_option
def replay(
    recording: Path, ops: str, device: str, rtol: float | None, atol: float | None, share: float | None,
    bitwise: bool, model: str | None, html: Path | None, msprobe: Path | None, everything: bool, as_json: bool,
) -> None:  # fmt: skip
    """Computes the calls of RECORDING here and compares.

    RECORDING is a directory of `golden record`, or of msprobe's dumps. The exit code is 1 where a call lies beyond
    tolerance, is missing here or fails.
    """
    from softnpu.golden import _compare, _load, _msprobe_write, _page
    from softnpu.golden import _replay as replays

    tolerance = _compare.Tolerance(rtol, atol, share, bitwise)
    export = None
    try:
        if msprobe is not None:
            export = _msprobe_write.Export(msprobe, _load.load(recording))
        results = replays.replay(
            recording, device=device, ops=ops, tolerance=tolerance, model=_model(model),
            picture=html is not None, computed=export.add if export else None,
        )  # fmt: skip
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None
    if export is not None:
        export.close()
    if html is not None:
        html.write_text(_page.render(str(recording), results), "utf-8")
    counts = replays.counts(results)
    if as_json:
        _output.show_json({"counts": counts, "calls": [r.as_json() for r in results]})
    else:
        _show(results, everything)
        said = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        click.echo(f"{recording}: {said or 'no calls'}")
    sys.exit(1 if replays.failed(results) else 0)


def _model(name: str | None) -> Any:
    if name is None:
        return None
    module, _, function = name.partition(":")
    if not function:
        raise click.BadParameter(f"{name!r} is not MODULE:FUNCTION", param_hint="--model")
    sys.path.insert(0, os.getcwd())
    return getattr(importlib.import_module(module), function)()


def _show(results: Any, everything: bool) -> None:
    columns = (
        "call",
        "operator",
        "status",
        "output",
        "max abs",
        "max rel",
        "ULPs",
        "cosine",
        "beyond",
        "NaN/Inf",
    )
    table = _output.table("calls that differ" if not everything else "calls", *columns)
    for result in results:
        if result.status == "same" and not everything:
            continue
        number = f"{result.process} {result.call['seq']}".strip()
        name_shown, reason = escape(result.name), escape(result.reason)
        if not result.outputs:
            table.add_row(escape(number), name_shown, result.status, reason)
        for name, d in result.outputs:
            if everything or not d.bitwise:
                table.add_row(
                    escape(number), name_shown, result.status, escape(f"{name} {d.mismatch}".strip()), f"{d.max_abs:.3g}",
                    f"{d.max_rel:.3g}", f"{d.max_ulp:.0f}", f"{d.cosine:.6f}", f"{100 * d.share:.3g} %",
                    f"{d.nan}/{d.inf}",
                )  # fmt: skip
    if table.row_count:
        _output.show(table)


@golden.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              default=Path("softnpu_golden.pyz"), show_default=True, help="The file.")  # fmt: skip
def pack(output: Path) -> None:
    """Puts the recorder into one file for a machine with a card, which must not have softnpu installed.

    There, `python softnpu_golden.pyz record prog.py` records; with the file on PYTHONPATH, `from softnpu import golden`
    works too.
    """
    package = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _PACKED:
            archive.write(package / name, f"softnpu/{name}")
        for file in sorted((package / "golden").glob("*.py")):
            archive.write(file, f"softnpu/golden/{file.name}")
        archive.writestr("__main__.py", "from softnpu.golden.__main__ import main\n\nmain()\n")
    click.echo(f"{output}: {output.stat().st_size / 1024:.0f} KiB")
