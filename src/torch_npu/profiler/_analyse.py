"""From raw data to result files: one profile or many, in this process, in one of its own, or in several."""

from __future__ import annotations

import atexit
import csv
import functools
import gc
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_npu.profiler import _raw
from torch_npu.profiler._messages import error, info, warn
from torch_npu.profiler._model import Model
from torch_npu.utils._path_manager import PathManager

if TYPE_CHECKING:
    from rich.progress import Progress

_DONE = "analyse.done"
_PROGRAM = str(Path(__file__).with_name("_offline.py"))
_pending: list[subprocess.Popen[bytes]] = []


def one(path: str, async_mode: bool = False, export_type: list[str] | None = None) -> None:
    """Analyzes one profile; `async_mode` leaves it to a process that the program does not wait for, except at its end."""
    if not path:
        warn("There is nothing to analyze: the profiler was not started.")
    elif async_mode:
        info(f"Analyzing {path} beside the program.")
        if not _pending:
            atexit.register(_wait)
        _pending.append(subprocess.Popen(_command(path, export_type)))
    else:
        run(path, export_type)


def _wait() -> None:
    while _pending:
        _pending.pop().wait()


def many(path: str, processes: int, export_type: list[str] | None) -> None:
    """Analyzes the profile in a directory, or all that are below it, with a bar of progress."""
    root = os.path.abspath(os.path.expanduser(path))
    PathManager.check_input_directory_path(root)
    if not os.path.isdir(root):
        raise RuntimeError(f"{root} does not exist")
    found = profiles(root)
    if not found:
        warn(f"There is no profile in {root}.")
        return
    for directory in found:
        PathManager.check_directory_path_writeable(directory)
    with _progress() as bar:
        for _ in bar.track(_each(found, min(processes, len(found)), export_type), len(found)):
            pass


def _progress() -> Progress:
    """Profiles that are done, of all; on one line of the standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = BarColumn(), MofNCompleteColumn(), TextColumn("profiles analyzed")
    return Progress(*columns, console=Console(stderr=True))


def _each(found: list[str], processes: int, export_type: list[str] | None) -> Iterator[None]:
    """Yields when a profile is done."""
    if processes == 1:
        for directory in found:
            run(directory, export_type)
            yield
        return
    # Programs of their own: a caller needs no `if __name__ == "__main__"`, and may be a daemon.
    with ThreadPoolExecutor(processes) as pool:
        parts = [pool.submit(_in_process, directory, export_type) for directory in found]
        for part in as_completed(parts):
            part.result()
            yield


def _command(path: str, export_type: list[str] | None) -> list[str]:
    return [sys.executable, _PROGRAM, path, json.dumps(export_type)]


def _in_process(path: str, export_type: list[str] | None) -> None:
    status = subprocess.run(_command(path, export_type), check=False).returncode
    if status:
        error(f"The analysis of {path} ended with status {status}.")


def profiles(root: str) -> list[str]:
    """The profiles of a directory: itself, or those in it."""
    if _is_profile(root):
        return [root]
    inside = sorted(entry.path for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    return [path for path in inside if _is_profile(path)]


def _is_profile(path: str) -> bool:
    return os.path.isdir(os.path.join(path, _raw.FRAMEWORK)) or any(
        entry.name.startswith("PROF_") and entry.is_dir() for entry in os.scandir(path)
    )


# --- one profile -------------------------------------------------------------------------------------------


def run(path: str, export_type: list[str] | None) -> None:
    """Writes all result files. Python's garbage collector would walk all events again and again: it rests."""
    collects = gc.isenabled()
    gc.disable()
    try:
        _write_all(path, export_type)
    finally:
        if collects:
            gc.enable()


#: what comes of raw data that no profiler wrote, besides files that cannot be written
_WRONG = (
    OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, ZeroDivisionError,
    sqlite3.Error, csv.Error,
)  # fmt: skip


def _write_all(path: str, export_type: list[str] | None) -> None:
    """One file that fails is told and logged, and the others are written."""
    from torch_npu.profiler import writers

    began = time.monotonic()
    info(f"Analyzing {path}.")
    log = _log(path)
    model = Model(path)
    out = model.path / _raw.OUTPUT
    if out.is_symlink() or out.is_file():
        out.unlink()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(mode=0o750)
    types = export_type or model.experimental.get("_export_type") or ["text"]
    text = isinstance(types, (list, str)) and "text" in types
    chosen = (writers.TEXT if text else ()) + writers.DB
    parts = [
        (writer.__name__.rsplit(".", 1)[-1], functools.partial(writer.write, model, out))
        for writer in chosen
    ]
    parts.append(("op_args", functools.partial(_record_op_args, model)))
    for name, write in parts:
        started = time.monotonic()
        try:
            write()
        except _WRONG as wrong:
            log.exception("%s failed", name)
            error(f"{name} failed: {wrong!r}. The log is in {model.path / _raw.LOGS}.")
        else:
            log.info("%s: %.3f s", name, time.monotonic() - started)
    for file in model.reader.broken:
        warn(
            f"{file} was cut short: the program ended while it was written, or something else wrote to it. "
            "What came before counts."
        )
    if model.experimental.get("_data_simplification", True):
        _simplify(model)
    (out / _DONE).touch(mode=0o640)
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    info(f"Analyzed {path} in {time.monotonic() - began:.2f} s.")


def _log(path: str) -> logging.Logger:
    directory = os.path.join(path, _raw.LOGS)
    PathManager.make_dir_safety(directory)
    log = logging.getLogger(f"torch_npu.profiler.{path}")
    log.setLevel(logging.INFO)
    log.propagate = False
    stamp = time.strftime("%Y%m%d%H%M%S")
    handler = logging.FileHandler(os.path.join(directory, f"profiler_{stamp}_{os.getpid()}.log"))
    handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
    log.addHandler(handler)
    return log


def _record_op_args(model: Model) -> None:
    """record_op_args: each operator with the shapes and types it was called with, beside the profile.

    Differs from upstream: the file is JSON of our own, op_args.json; there is no AOE to read it.
    """
    if not model.experimental.get("record_op_args"):
        return
    seen: dict[str, dict[str, Any]] = {}
    for op in model.ops:
        if op.kind == "op" and op.shapes is not None:
            entry = {"name": op.name, "input_shapes": op.shapes, "input_types": op.dtypes}
            known = seen.setdefault(json.dumps(entry), {**entry, "count": 0})
            known["count"] += 1
    directory = model.path.with_name(model.path.name + "_op_args")
    if directory.is_symlink():
        raise ValueError(f"{directory} is a link")
    directory.mkdir(mode=0o750, exist_ok=True)
    _raw.write_json(directory / "op_args.json", list(seen.values()))


def _simplify(model: Model) -> None:
    """data_simplification: of the device's data only what was collected stays, not what tools have made of it."""
    for entry in [entry for folder in model.reader.device_folders() for entry in folder.iterdir()]:
        if entry.is_symlink() or entry.is_file():
            entry.unlink()
        elif entry.name != "host" and not entry.name.startswith("device_"):
            shutil.rmtree(entry)


def export(path: str, kind: str, output: str | None, **options: Any) -> None:
    """Writes one file of a profile: a timeline, stacks, or memory by category."""
    from torch_npu.profiler.writers import memory_timeline, stacks, trace_view

    if output is None:
        raise ValueError(f"{kind} needs a file to write")
    model, target = Model(path), Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    if "db" in (model.experimental.get("_export_type") or ()):
        warn(f"export_type Db has no effect on {kind}.")
    if kind == "export_chrome_trace":
        trace_view.export(model, target)
    elif kind == "export_stack":
        stacks.export(model, target, options["metric"])
    elif kind == "export_memory_timeline":
        memory_timeline.export(model, target, options["device"])
    else:
        raise ValueError(f"there is no analysis {kind!r}")
