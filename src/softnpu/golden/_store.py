"""A recording on disk: `index.json` and files of tensors, each tensor once, all of them below a limit.

The index is replaced whole after each file of tensors, so that a recording that was cut short holds all but its last
calls, and a further run of the same program continues it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from softnpu.golden import _files, _values

INDEX = "index.json"
FORMAT = "softnpu-golden"
VERSION = 1
_SHARD = 64 * 2**20  # bytes in a file of tensors, about
_FILE = re.compile(r"tensors-[0-9]{5,}\.safetensors")
_PARTS: dict[str, Any] = {"made_by": dict, "seen": int, "tensors": dict, "calls": list}
_CALL: dict[str, Any] = {
    "seq": int, "op": str, "overload": str, "module": str, "phase": str, "source": (dict, type(None)), "args": (list, dict),
    "kwargs": dict, "outputs": (dict, list, int, float, str, bool, type(None)), "written": dict,
}  # fmt: skip
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def size(text: int | str) -> int:
    """Bytes: 4GiB, 512MiB, 1.5GB or a number."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"limit must be a size such as 4GiB or 512MiB, but is {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


class Full(Exception):
    """The limit is reached."""


class Writer:
    """Adds calls to a recording. `seen` is the number of chosen calls that are in it or were left out on purpose."""

    def __init__(self, directory: Path, about: dict[str, Any], limit: int) -> None:
        self.directory, self.limit = directory, limit
        self.index: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            **about,
            "complete": False,
            "seen": 0,
            "left_out": 0,
            "tensors": {},
            "calls": [],
        }
        self.stored = 0
        self.files = 0
        self.pending: dict[str, tuple[torch.dtype, tuple[int, ...], memoryview]] = {}
        self.written_calls = 0
        directory.mkdir(parents=True, exist_ok=True)

    def resume(self, before: dict[str, Any]) -> None:
        """Continues a recording that is on disk."""
        for key in ("tensors", "calls", "seen"):
            self.index[key] = before[key]
        self.stored = sum(entry["bytes"] for entry in self.index["tensors"].values())
        names = {entry["file"] for entry in self.index["tensors"].values()}
        self.files = 1 + max((int(name[8:13]) for name in names), default=-1)
        self.written_calls = len(self.index["calls"])

    def keep(self, tensor: torch.Tensor, fresh: dict[str, Any]) -> str:
        """The hash of a tensor on the CPU; `fresh` collects what is not in the recording yet."""
        data = _files.as_bytes(tensor)
        name = _files.content_hash(tensor, data)
        if name not in self.index["tensors"] and name not in fresh:
            # A copy: the program may write into the tensor before the file is written.
            fresh[name] = (tensor.dtype, tuple(tensor.shape), memoryview(bytes(data)))
        return name

    def add(self, call: dict[str, Any], fresh: dict[str, Any]) -> None:
        """One call and its new tensors; all of it or, past the limit, nothing."""
        more = sum(data.nbytes for _, _, data in fresh.values())
        if self.stored + more > self.limit:
            raise Full
        self.stored += more
        for name, (dtype, shape, data) in fresh.items():
            self.index["tensors"][name] = {
                "file": f"tensors-{self.files:05d}.safetensors",
                "dtype": _files.dtype_name(dtype),
                "shape": list(shape),
                "bytes": data.nbytes,
            }
        self.pending.update(fresh)
        self.index["calls"].append(call)
        waiting = sum(data.nbytes for _, _, data in self.pending.values())
        # Rarely where nothing is lost by it: the index grows, and is written whole.
        if waiting >= _SHARD or len(self.index["calls"]) > 100 + 1.25 * self.written_calls:
            self.flush()

    def flush(self) -> None:
        if self.pending:
            _files.write(self.directory / f"tensors-{self.files:05d}.safetensors", self.pending)
            self.files += 1
            self.pending = {}
        draft = self.directory / f"{INDEX}.part"
        draft.write_text(json.dumps(self.index), "utf-8")
        draft.replace(self.directory / INDEX)
        self.written_calls = len(self.index["calls"])


def read_index(directory: Path) -> dict[str, Any]:
    path = directory / INDEX
    try:
        index = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{directory} is not a recording: it has no {INDEX}") from None
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"{path} is not JSON: {wrong}") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"{path} is not the index of a recording")
    if index.get("version") != VERSION:
        raise ValueError(f"{path} has version {index.get('version')}, this softnpu reads {VERSION}")
    wrong_part = _wrong(index)
    if wrong_part is not None:
        raise ValueError(f"{path} is not the index of a recording: {wrong_part}")
    return index


def _wrong(index: dict[str, Any]) -> str | None:
    """What is not as `Writer` writes it: a recording may come from anywhere."""
    for key, kind in _PARTS.items():
        if not isinstance(index.get(key), kind):
            return f"it has no {key}"
    for name, entry in index["tensors"].items():
        if not (isinstance(entry, dict) and _FILE.fullmatch(str(entry.get("file")))):
            return f"tensor {name} is in no file of the recording"
        shape = entry.get("shape")
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            return f"tensor {name} has no shape"
        if type(entry.get("bytes")) is not int or not isinstance(entry.get("dtype"), str):
            return f"tensor {name} has no size or no dtype"
    for number, call in enumerate(index["calls"]):
        for key, kinds in _CALL.items():
            if not isinstance(call, dict) or not isinstance(call.get(key), kinds):
                return f"call {number} has no {key}"
    return None


class Recording:
    """A recording to read: `about`, `calls`, and `tensor(entry)` for the tensors of a call."""

    source = "recording"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        index = read_index(directory)
        self.calls: list[dict[str, Any]] = index.pop("calls")
        self.tensors: dict[str, Any] = index.pop("tensors")
        self.about: dict[str, Any] = index
        self.readers: dict[str, _files.Reader] = {}

    def tensor(self, entry: dict[str, Any]) -> torch.Tensor:
        name = entry["tensor"]
        known = self.tensors.get(name)
        if known is None:
            raise ValueError(f"{self.directory / INDEX} has no tensor {name}")
        file = known["file"]
        if file not in self.readers:
            self.readers[file] = _files.Reader(self.directory / file)
        return self.readers[file].read(name, _values.dtype_of(known["dtype"]), known["shape"])

    def inputs(self, call: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        found = _values.tensors(call["args"]) + _values.tensors({"dict": call["kwargs"]})
        return [(f"input {name}", entry) for name, entry in found]

    def outputs(self, call: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """The results, then the arguments that the operator wrote."""
        found = [(f"output {name}".strip(), e) for name, e in _values.tensors(call["outputs"])]
        return found + [(f"written {name}", entry) for name, entry in call["written"].items()]

    def unread(self, call: dict[str, Any]) -> str:
        return ""
