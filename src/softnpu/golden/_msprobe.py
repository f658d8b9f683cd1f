"""Dumps of msprobe (MindStudio's precision tool): dump.json with tensors in .pt or .npy files, APIs and modules.

A call has one name: `NPU.npu_rms_norm.0.forward` for an API, `Module.layers.0.mlp.MLP.forward.0` for a module.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch

from softnpu.golden import _values

_SKIPPED = {
    "Distributed": "it needs the process group of the job",
    "MindSpeed": "it is an operator of MindSpeed",
    "Triton": "it is a Triton kernel",
    "Jit": "it is a compiled function",
}


#: what PyTorch and numpy raise for a file that is none of theirs, or holds other objects
_NO_TENSOR = (RuntimeError, TypeError, ValueError, KeyError, EOFError, pickle.PickleError)


class Dump:
    """A dump to read, with the calls in the form of a recording."""

    source = "msprobe"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            whole = json.loads((directory / "dump.json").read_text("utf-8"))
        except (ValueError, RecursionError) as wrong:
            raise ValueError(f"{directory / 'dump.json'} is not JSON: {wrong}") from None
        data = whole.get("data") if isinstance(whole, dict) else None
        if not isinstance(data, dict):
            raise ValueError(f"{directory / 'dump.json'} is not a dump of msprobe: it has no data")
        self.about = {k: v for k, v in whole.items() if k != "data"}
        self.raw: dict[str, Any] = data
        self.sources = _sources(directory / "stack.json")
        self.calls = [self._read(number, *item) for number, item in enumerate(data.items())]
        self.by_name = {call["name"]: call for call in self.calls}

    def _read(self, number: int, name: str, entry: Any) -> dict[str, Any]:
        try:
            return self._call(number, name, entry)
        except (AttributeError, KeyError, TypeError, RecursionError) as wrong:
            path = self.directory / "dump.json"
            raise ValueError(f"{path} has no call of msprobe under {name!r}: {wrong!r}") from None

    def _call(self, number: int, name: str, entry: dict[str, Any]) -> dict[str, Any]:
        kind, path, count, phase = split(name)
        call: dict[str, Any] = {
            "seq": number,
            "name": name,
            "op": f"{kind}.{path}",
            "kind": kind,
            "path": path,
            "count": count,
            "phase": phase,
            "module": path.rpartition(".")[0] if kind == "Module" else "",
            "source": self.sources.get(name),
            "written": {},
            "why": "",
        }
        parts: dict[str, Any] = {"args": [], "kwargs": {}, "parameters": {}, "outputs": []}
        if phase == "parameters_grad":
            parts["outputs"] = entry
            call["why"] = "gradients of parameters are compared, not computed"
        elif phase == "backward":
            parts.update(args=entry.get("input", []), outputs=entry.get("output", []))
        else:
            parts.update(
                args=entry.get("input_args", entry.get("input", [])),
                kwargs=entry.get("input_kwargs", {}),
                parameters=entry.get("parameters", {}),
                outputs=entry.get("output", []),
            )
        for part, value in parts.items():
            try:
                call[part] = self._encoded(value)
            except _values.Unsupported as why:
                call[part] = {} if isinstance(value, dict) else []
                call["why"] = call["why"] or str(why)
        for part in ("kwargs", "parameters"):
            call[part] = call[part].get("dict", {})
        call["why"] = call["why"] or _SKIPPED.get(kind, "")
        return call

    def _encoded(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return _values.encode(value, str)  # type: ignore[arg-type]
        if isinstance(value, list):
            return [self._encoded(item) for item in value]
        kind = value.get("type")
        if not isinstance(kind, str):
            return {"dict": {key: self._encoded(item) for key, item in value.items()}}
        content = value.get("value")
        if kind in ("torch.Tensor", "torch.distributed.tensor.DTensor", "numpy.ndarray"):
            return self._tensor(value)
        if kind in ("slice", "torch.Size"):
            return {"slice": content} if kind == "slice" else content
        if kind == "ellipsis":
            return {"ellipsis": True}
        if kind == "torch.dtype":
            return {"dtype": str(content).removeprefix("torch.")}
        if kind == "torch.device":
            return {"device": str(content)}
        if kind == "torch.memory_format":
            return {"torch": value["format"]}
        if isinstance(content, (bool, int, float, str)) and not kind.startswith("torch."):
            return self._encoded(content)
        raise _values.Unsupported(f"a value of type {kind}")

    def _tensor(self, value: dict[str, Any]) -> dict[str, Any]:
        file = value.get("data_name")
        if not file or file == "-1":
            raise _values.Unsupported("a tensor without data (msprobe's task must be tensor)")
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{self.directory} has no file {file} in dump_tensor_data")
        return {
            "tensor": file,
            "dtype": str(value["dtype"]).removeprefix("torch."),
            "shape": value["shape"],
            "device": "npu",
            "requires_grad": bool(value.get("requires_grad")),
        }

    def file(self, name: str) -> Path:
        """Beside dump.json, or where dump.json says, which is often a path of another machine."""
        places = [self.directory / "dump_tensor_data", Path(self.about.get("dump_data_dir") or "")]
        for place in places:
            if (place / name).is_file():
                return place / name
        raise ValueError(f"{self.directory} has no file {name} in dump_tensor_data")

    def tensor(self, entry: dict[str, Any]) -> torch.Tensor:
        """The tensor of a file, in which nothing runs: pickles of other objects are refused."""
        path = self.file(entry["tensor"])
        try:
            if path.suffix == ".npy":
                import numpy

                loaded = torch.from_numpy(numpy.load(path, allow_pickle=False).copy())
            else:
                loaded = torch.load(path, map_location="cpu", weights_only=True)
        except _NO_TENSOR as wrong:
            raise ValueError(f"{path} holds no tensor: {str(wrong).partition('. ')[0]}") from None
        if not isinstance(loaded, torch.Tensor):
            raise ValueError(f"{path} holds no tensor, but a {type(loaded).__name__}")
        wanted = getattr(torch, entry["dtype"], None)  # bfloat16 stands in .npy files as float32
        return loaded.detach().to(wanted if isinstance(wanted, torch.dtype) else loaded.dtype)

    def inputs(self, call: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        found = _values.tensors(call["args"])
        for part in ("kwargs", "parameters"):
            found += _values.tensors({"dict": call[part]})
        return [(f"input {name}", entry) for name, entry in found]

    def outputs(self, call: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [(f"output {name}".strip(), e) for name, e in _values.tensors(call["outputs"])]

    def unread(self, call: dict[str, Any]) -> str:
        return call["why"]


def split(name: str) -> tuple[str, str, int, str]:
    """(kind, path, number, phase) of the name of a call."""
    parts = name.split(".")
    kind = parts[0]
    if "parameters_grad" in parts[-2:]:
        at = len(parts) - parts[::-1].index("parameters_grad") - 1
        count = int(parts[-1]) if parts[-1].isdecimal() else 0
        return kind, ".".join(parts[1:at]), count, "parameters_grad"
    if len(parts) >= 4:
        if parts[-2] in ("forward", "backward") and parts[-1].isdecimal():
            return kind, ".".join(parts[1:-2]), int(parts[-1]), parts[-2]
        if parts[-1] in ("forward", "backward") and parts[-2].isdecimal():
            return kind, ".".join(parts[1:-2]), int(parts[-2]), parts[-1]
    raise ValueError(f"{name!r} is not the name of an API or module in a dump of msprobe")


def _sources(path: Path) -> dict[str, dict[str, Any]]:
    """Name of a call -> its line; stack.json has the names of each stack."""
    if not path.exists():
        return {}
    try:
        stacks = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"{path} is not JSON: {wrong}") from None
    found: dict[str, dict[str, Any]] = {}
    for entry in stacks.values() if isinstance(stacks, dict) else ():
        if not (isinstance(entry, list) and len(entry) == 2 and all(map(_is_list, entry))):
            continue
        names, stack = entry
        head, _, text = str(stack[0]).partition("\n")
        words = [word.strip() for word in head.split(",")]
        if len(words) >= 3 and words[1].removeprefix("line ").isdecimal():
            place = {
                "file": words[0].removeprefix("File "),
                "line": int(words[1].removeprefix("line ")),
                "function": words[2].removeprefix("in "),
                "text": text.strip(),
            }
            found.update({name: place for name in names if isinstance(name, str)})
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)
