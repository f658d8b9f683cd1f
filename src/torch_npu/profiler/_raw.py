"""Raw data of a profile, written while it is collected, so that a program that dies leaves what it had measured.

A raw file is a line of JSON for each batch of rows. A line that was cut short by the end of the process is dropped when
the file is read; everything before it counts.
"""

from __future__ import annotations

import json
import os
import random
import string
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

Row = list[Any]

FRAMEWORK, OUTPUT, LOGS = "FRAMEWORK", "ASCEND_PROFILER_OUTPUT", "logs"
METADATA = "profiler_metadata.json"

# Kinds of rows and the file of each; {device} parts the tasks by device.
HOST_FILES = {
    "op": "torch.op_range.jsonl",  # a host operator: see _host.FIELDS
    "memory": "torch.memory_usage.jsonl",  # action, address, bytes, stream, device, ns, thread
    "mark": "torch.mstx.jsonl",  # message, domain, start, end, (device, stream) or null, thread
    "gc": "torch.gc_record.jsonl",  # process, start, end
    "step": "torch.step.jsonl",  # number, start, end
    "tensor": "torch.tensor.jsonl",  # category, storage address, ns
    "use": "torch.tensor_use.jsonl",  # storage address, ns, in backward
    "system": "host_system.jsonl",  # kind, ns, values
    "baseline": "torch.memory_baseline.jsonl",  # device, allocated, reserved, active, ns
    "block": "torch.memory_block.jsonl",  # device, address, bytes: what was there before
}
DEVICE_FILES = {
    "task": "task.jsonl",  # see _trace.FIELDS
    "kernel": "kernel.jsonl",  # operator, type and core of its kernel: see _facts
    "communication": "communication.jsonl",  # see _communication.Communication
}


class Writer:
    """Appends rows to the raw files of one profile; threads may share it."""

    def __init__(self, path: str | Path, with_device: bool) -> None:
        self.path = Path(path)
        self._framework = self.path / FRAMEWORK
        self._framework.mkdir(mode=0o750, exist_ok=True)
        self._device = self._make_prof() if with_device else None
        self._files: dict[str, Any] = {}
        self._lock = threading.Lock()

    def _make_prof(self) -> Path:
        stamp = datetime.now().astimezone().strftime("%Y%m%d%H%M%S%f")[:-3]
        letters = "".join(random.SystemRandom().choices(string.ascii_uppercase, k=16))
        path = self.path / f"PROF_000001_{stamp}_{letters}"
        (path / "host").mkdir(mode=0o750, parents=True)
        return path

    def append(self, kind: str, rows: list[Row]) -> None:
        """Writes the rows and hands them to the operating system at once."""
        if not rows:
            return
        line = json.dumps(rows, separators=(",", ":"), default=str) + "\n"
        with self._lock:
            file = self._files.get(kind)
            if file is None:
                file = self._files[kind] = self._open(kind)
            file.write(line)
            file.flush()

    def _open(self, kind: str) -> Any:
        if kind in HOST_FILES:
            path = self._framework / HOST_FILES[kind]
        elif self._device is not None:
            path = self._device / "device_0" / DEVICE_FILES[kind]
            path.parent.mkdir(mode=0o750, exist_ok=True)
        else:
            raise RuntimeError(f"this profile collects no {kind} rows of a device")
        return open(path, "a", encoding="utf-8", opener=_private)

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)


class Reader:
    """The raw files of a profile, finished or not."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.broken: list[str] = []  # files whose last line was cut short

    @property
    def has_device(self) -> bool:
        return bool(self.device_folders())

    def device_folders(self) -> list[Path]:
        """The folders of the device's data; a link, which no profiler makes, would lead out of the profile."""
        found = sorted(self.path.glob("PROF_*"))
        return [path for path in found if path.is_dir() and not path.is_symlink()]

    def rows(self, kind: str) -> Iterator[Row]:
        if kind in HOST_FILES:
            files = [self.path / FRAMEWORK / HOST_FILES[kind]]
        else:
            inside = f"device_*/{DEVICE_FILES[kind]}"
            files = [file for path in self.device_folders() for file in sorted(path.glob(inside))]
        for file in files:
            if file.is_file():  # a pipe would keep the reader waiting
                yield from self._file(file)

    def _file(self, file: Path) -> Iterator[Row]:
        with open(file, encoding="utf-8") as lines:
            try:
                for line in lines:
                    batch = json.loads(line)
                    if not isinstance(batch, list) or not all(isinstance(r, list) for r in batch):
                        raise ValueError("a line is no list of rows")
                    yield from batch
            except (ValueError, RecursionError):
                self.broken.append(file.name)

    def info(self) -> dict[str, Any]:
        """The settings of the profile; empty if the process died before it could write them."""
        for file in sorted(self.path.glob("profiler_info*.json")):
            return self._table(file)
        return {}

    def metadata(self) -> dict[str, Any]:
        return self._table(self.path / METADATA)

    def _table(self, file: Path) -> dict[str, Any]:
        """What a JSON file says; nothing if it says nothing that can be read."""
        if not file.is_file():
            return {}
        try:
            table = json.loads(file.read_text("utf-8"))
        except (ValueError, RecursionError):
            table = None
        if not isinstance(table, dict):
            self.broken.append(file.name)
            return {}
        return table


def write_json(path: Path, value: Any, **options: Any) -> None:
    """Writes a JSON file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(draft, "x", encoding="utf-8", opener=_private) as file:
        json.dump(value, file, ensure_ascii=False, **options)
    os.replace(draft, path)
