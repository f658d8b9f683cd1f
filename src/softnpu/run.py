"""`softnpu run`: a program of any kind on the emulated device, then what it did there."""

from __future__ import annotations

import collections
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softnpu import _observe, chips, findings, ownership, settings, shuffled
from softnpu.findings import page as findings_page
from softnpu.findings import terminal
from softnpu.python_versions import tomllib

_PACKAGES = Path(__file__).resolve().parent.parent
_MAX_BYTES = 1 << 20  # of a faults file
_PAUSE = 0.2  # seconds between two looks at a process
_FAULTS = ("memory_error", "link_error", "fail", "corrupt_products", "stress", "out_of_memory")
_STARTUP = """\
import importlib.machinery, importlib.util, pathlib, sys
_here = pathlib.Path(__file__).resolve().parent
from {package} import {module}
{module}.install(_here)
# The environment's own sitecustomize, which this file hides.
_rest = [p for p in sys.path if pathlib.Path(p or ".").resolve() != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _rest)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
"""


@click.command(
    name="run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
@click.option(
    "--soc",
    help="The chip, as SOFTNPU_SOC (`softnpu chips` lists them).",
    shell_complete=lambda _context, _option, typed: [n for n in chips.names() if typed in n],
)
@click.option("--devices", help="How many devices, as SOFTNPU_DEVICES.")
@click.option("--memory", help="Memory of each device, as SOFTNPU_MEMORY, e.g. 32GiB.")
@click.option(
    "--faults",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file of faults to inject; see below.",
)
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True,
              help="Operators in the table; 0 is all.")  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="The summary as JSON, the last line on stdout."
)
@click.option("--sanitize", is_flag=True, help="Find races between streams; exit code 66 if any.")
@click.option("--warn", is_flag=True, help="With --sanitize: the exit code stays the program's.")
@click.option(
    "--poison", is_flag=True, help="Find reads of memory that nobody wrote; sanitizes too."
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What the sanitizer found as a page.",
)
@click.option(
    "--shuffle",
    metavar="SEED",
    help="Run work of different streams in another legal order; 1..50 tries each seed.",
)
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    soc: str | None, devices: str | None, memory: str | None, faults: Path | None, top: int,
    as_json: bool, sanitize: bool, warn: bool, poison: bool, page: Path | None, shuffle: str | None,
    module: bool, program: str, arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Runs PROGRAM with its ARGUMENTS on the emulated device, then says what it did there.

    PROGRAM is a Python script, with -m a module, or else a command such as torchrun. The summary (operators, peak
    memory, refused arguments, warnings; of all processes of the job) goes to stderr. The exit code is the program's,
    or 66 if the sanitizer found something.

    \b
        softnpu run --devices 2 train.py --epochs 1
        softnpu run torchrun --nproc-per-node 2 train.py
        softnpu run --faults faults.toml -m pytest tests
        softnpu run --sanitize --html races.html train.py
        softnpu run --shuffle 1..50 train.py

    The faults file has one [[fault]] for each call of a function of softnpu.faults, which happens when the
    process imports torch_npu; `rank` limits it to one process of a job:

    \b
        [[fault]]
        call = "out_of_memory"   # or link_error, fail, corrupt_products, stress, memory_error
        nth = 100                # the function's arguments, by name
        device = 0
        rank = 1
    """
    given = {"SOFTNPU_SOC": soc, "SOFTNPU_DEVICES": devices, "SOFTNPU_MEMORY": memory}
    sanitize = sanitize or poison or page is not None
    if sanitize:
        given["SOFTNPU_SANITIZE"] = "warn" if warn else "1"
    if poison:
        given["SOFTNPU_POISON"] = "1"
    environment = {**os.environ, **{k: v for k, v in given.items() if v is not None}}
    try:
        chosen = settings.read(environment)
        injected = read_faults(faults, chosen.devices) if faults else []
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None
    command = command_of(program, module) + list(arguments)
    if shuffle is not None:
        seeds = shuffled.seeds(shuffle)
        if len(seeds) > 1:
            sys.exit(shuffled.compare(command, environment, _PACKAGES, seeds))
        environment["SOFTNPU_SHUFFLE"] = str(seeds[0])
    with tempfile.TemporaryDirectory(prefix="softnpu_run_") as name:
        directory = Path(name)
        (directory / _observe.FAULTS).write_text(json.dumps(injected), "utf-8")
        code = execute(command, observed(environment, directory, "softnpu", "_observe"))
        notes = [json.loads(p.read_text("utf-8")) for p in sorted(directory.glob("process_*.json"))]
    found = summary(notes, code)
    if found["findings"] and sanitize and not warn:
        code = found["exit_code"] = findings.EXIT_CODE
    if page is not None:
        page.write_text(findings_page.render(findings.read(found["findings"])), "utf-8")
    if as_json:
        click.echo(json.dumps(found))
    else:
        _print(found, chosen.soc, top)
    sys.exit(code)


def command_of(program: str, module: bool) -> list[str]:
    """A module, a file for Python, or a command on the PATH or beside this Python."""
    if module:
        return [sys.executable, "-m", program]
    if Path(program).exists():
        return [sys.executable, program]
    beside = str(Path(sys.executable).parent)
    found = shutil.which(program) or shutil.which(program, path=beside)
    if found is None:
        raise click.BadParameter(
            f"{program!r} is neither a file nor a command", param_hint="PROGRAM"
        )
    return [found]


def observed(
    environment: dict[str, str], directory: Path, package: str, module: str
) -> dict[str, str]:
    """The environment in which every Python process calls `install(directory)` of that module first."""
    startup = _STARTUP.format(package=package, module=module)
    (directory / "sitecustomize.py").write_text(startup, "utf-8")
    before = environment.get("PYTHONPATH")
    paths = [str(directory), *([before] if before else []), str(_PACKAGES)]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def execute(
    command: list[str], environment: dict[str, str], meanwhile: Callable[[], None] | None = None
) -> int:
    """The exit code, as a shell tells it: 128 + the signal for a process that a signal ended. `meanwhile` is called now
    and then as long as the process runs."""
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            code = process.wait(None if meanwhile is None else _PAUSE)
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            continue  # the terminal sent it to the program too, which decides
        except subprocess.TimeoutExpired:
            assert meanwhile is not None
            meanwhile()


def read_faults(path: Path, devices: int) -> list[dict[str, Any]]:
    """The faults of a file, each checked against the signature of its function."""
    importlib.import_module("torch")  # the extension below links to its libraries
    faults = importlib.import_module("softnpu.faults")
    try:
        table = tomllib.loads(ownership.read_text(path, _MAX_BYTES))
    except ownership.Untrusted as wrong:
        raise ValueError(str(wrong)) from None
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"{path} is not TOML: {wrong}") from None
    entries = table.pop("fault", [])
    if table or not isinstance(entries, list):
        raise ValueError(f"{path} must hold [[fault]] tables and nothing else")
    for number, entry in enumerate(entries, 1):
        where = f"{path}, fault {number}"
        arguments = {k: v for k, v in entry.items() if k not in ("call", "rank")}
        if entry.get("call") not in _FAULTS:
            raise ValueError(
                f"{where}: call must be one of {', '.join(_FAULTS)}, but is {entry.get('call')!r}"
            )
        try:
            inspect.signature(getattr(faults, entry["call"])).bind(**arguments)
        except TypeError as wrong:
            raise ValueError(f"{where}: {entry['call']}: {wrong}") from None
        device = arguments.get("device", 0)
        if not isinstance(device, int) or not 0 <= device < devices:
            raise ValueError(f"{where}: device must be from 0 to {devices - 1}, but is {device!r}")
    return entries


def summary(notes: list[dict[str, Any]], code: int) -> dict[str, Any]:
    """The notes of all processes as one; a device's peak is the sum of its processes' peaks."""
    total: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for note in notes:
        for key in ("operators", "busy_ns", "peak_memory", "constraint_errors", "warnings"):
            total[key].update(note[key])
    return {
        "exit_code": code,
        "processes": len(notes),
        "operators": [
            {"name": name, "count": count, "ms": total["busy_ns"][name] / 1e6}
            for name, count in total["operators"].most_common()
        ],
        "peak_memory": {k: total["peak_memory"][k] for k in sorted(total["peak_memory"], key=int)},
        "constraint_errors": dict(total["constraint_errors"]),
        "warnings": dict(total["warnings"]),
        "dropped": sum(note["dropped"] for note in notes),
        "findings": [
            {**one, "rank": note["rank"]} for note in notes for one in note.get("findings", [])
        ],
    }


def _print(found: dict[str, Any], soc: str, top: int) -> None:
    console = Console(stderr=True)
    if not found["processes"]:
        console.print("softnpu run: no process of the program imported torch_npu")
        return
    operators = found["operators"]
    shown = operators[:top] if top else operators
    table = Table(title="operators", title_justify="left")
    for column in ("operator", "count", "ms"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for entry in shown:
        table.add_row(escape(entry["name"]), str(entry["count"]), f"{entry['ms']:.2f}")
    if len(shown) < len(operators):
        rest = operators[len(shown) :]
        table.add_row(
            f"{len(rest)} more", str(sum(e["count"] for e in rest)), f"{sum(e['ms'] for e in rest):.2f}"
        )  # fmt: skip
    console.print(table)
    table = Table(title="peak memory", title_justify="left")
    for column in ("device", "MiB"):
        table.add_column(column, justify="right")
    for device, peak in found["peak_memory"].items():
        table.add_row(device, f"{peak / 2**20:.2f}")
    console.print(table)
    for key, title, style in (
        ("constraint_errors", "constraints broken (the card would refuse too)", "red"),
        ("warnings", "warnings", "yellow"),
    ):
        if found[key]:
            table = Table("times", "message", title=title, title_justify="left", style=style)
            for message, count in found[key].items():
                table.add_row(str(count), escape(message))
            console.print(table)
    if found["findings"]:
        terminal.show(findings.read(found["findings"]), console)
    lost = f", {found['dropped']} tasks not counted" if found["dropped"] else ""
    console.print(
        f"softnpu run: {found['processes']} process(es) on emulated {soc}, "
        f"exit code {found['exit_code']}{lost}"
    )
