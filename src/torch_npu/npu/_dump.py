"""init_dump, set_dump, finalize_dump: the tensors of launched operators as files.

The configuration is that of CANN's `dump` section; the files of one run stand in

    <dump_path>/<YYYYMMDDhhmmss>/<device>/<operator>.<operator>_<n>.<task>.<stream>.<microseconds>.input.0.npy

(statistics with `dump_data: stats`: one statistics.csv), and `<YYYYMMDDhhmmss>/index.json` lists them.
"""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softnpu import _C, ownership
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _observe

_MODES = {"input": ("input",), "output": ("output",), "all": ("input", "output")}
_FIELDS = {
    "dump_path": str,
    "dump_mode": str,
    "dump_op_switch": str,
    "dump_list": list,
    "dump_data": str,
    "dump_step": str,
}
_CHOICES = {
    "dump_mode": tuple(_MODES),
    "dump_op_switch": ("on", "off"),
    "dump_data": ("tensor", "stats"),
}
# Fields of CANN that change nothing at these values, and are not supported at others.
_FIXED = {
    "dump_debug": ("off",),
    "dump_level": ("op", "all"),
    "dump_scene": (),
    "dump_stats": (),
    "dump_kernel_data": (),
}
_MAX_CONFIG = 1024 * 1024
_STATISTICS = ("operator", "stage", "index", "dtype", "shape", "max", "min", "mean", "l2norm")


def _bad(field: str, expected: str, received: object) -> ValueError:
    return ValueError(
        f"set_dump: field '{field}' must be {expected}, but received {received!r}"
        + pta_error(ErrCode.PARAM)
    )


def _checked(config: Any) -> dict[str, Any]:
    """The `dump` section with its defaults; a wrong field is an error that names it."""
    if not isinstance(config, dict):
        raise _bad("<root>", "an object with the field 'dump'", config)
    section = config.get("dump")
    if not isinstance(section, dict):
        raise _bad("dump", "an object", section)
    for field, value in section.items():
        if field in _FIXED:
            if value not in _FIXED[field]:
                raise NotImplementedError(
                    f"set_dump: field '{field}' is not supported with the value {value!r}"
                    + pta_error(ErrCode.NOT_SUPPORT)
                )
            continue
        if field not in _FIELDS:
            raise ValueError(
                f"set_dump: unknown field '{field}'; the fields are {', '.join(_FIELDS)}"
                + pta_error(ErrCode.PARAM)
            )
        if not isinstance(value, _FIELDS[field]):
            raise _bad(field, f"a {_FIELDS[field].__name__}", value)
        if field in _CHOICES and value not in _CHOICES[field]:
            raise _bad(field, f"one of {', '.join(_CHOICES[field])}", value)
    path = section.get("dump_path")
    if not path or not os.path.isdir(path) or not os.access(path, os.W_OK):
        raise _bad("dump_path", "an existing directory that can be written", path)
    defaults = {
        "dump_mode": "output",
        "dump_op_switch": "off",
        "dump_list": [],
        "dump_data": "tensor",
    }
    section = {**defaults, **section}
    section["layers"] = _layers(section["dump_list"])
    section["steps"] = _steps(section.get("dump_step", ""))
    if section["dump_op_switch"] == "off" and not section["dump_list"]:
        raise _bad("dump_list", "given where dump_op_switch is off", section["dump_list"])
    return section


def _layers(entries: list[Any]) -> set[str]:
    names: set[str] = set()
    for entry in entries:
        if not isinstance(entry, dict):
            raise _bad("dump_list", "a list of objects", entry)
        layers = entry.get("layer", [])
        if not isinstance(layers, list) or not all(isinstance(n, str) for n in layers):
            raise _bad("layer", "a list of operator names", layers)
        unknown = set(entry) - {"layer", "model_name"}
        if unknown:
            raise _bad("dump_list", "objects with the fields layer, model_name", sorted(unknown))
        names.update(layers)
    return names


def _steps(text: str) -> list[tuple[int, int]]:
    """`0|3-5`: ranges of the n-th run of an operator, both ends included; none means all."""
    ranges = []
    for part in filter(None, text.split("|")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _bad("dump_step", "numbers and ranges such as 0|3-5", text)
        ranges.append((int(first), int(last) if dash else int(first)))
    return ranges


class _Dump:
    """One run of the dump: what is selected, and where it goes."""

    def __init__(self, section: dict[str, Any]) -> None:
        self.stages = _MODES[section["dump_mode"]]
        self.layers, self.steps = section["layers"], section["steps"]
        self.statistics = section["dump_data"] == "stats"
        stamp = time.strftime("%Y%m%d%H%M%S")
        self.root = Path(section["dump_path"]).resolve() / stamp
        self.runs: dict[str, int] = {}
        self.task = 0
        self.entries: list[dict[str, Any]] = []

    def selects(self, name: str, run: int) -> bool:
        short = name.split("::")[-1]
        named = not self.layers or bool({name, short} & self.layers)
        return named and (not self.steps or any(a <= run <= b for a, b in self.steps))

    def __call__(self, stage: int, name: str, tensors: list[torch.Tensor]) -> None:
        if stage == _observe.INPUTS:
            self.task += 1
            self.runs[name] = self.runs.get(name, -1) + 1
        run, label = self.runs.get(name, 0), ("input", "output")[stage]
        if label not in self.stages or not self.selects(name, run):
            return
        for index, tensor in enumerate(tensors):
            self.save(name, run, label, index, tensor)

    def save(self, name: str, run: int, label: str, index: int, tensor: torch.Tensor) -> None:
        on_npu = tensor.device.type == "npu"
        if tensor.layout != torch.strided:
            return
        device = tensor.device.index if on_npu else _C.current_device()
        values = (_C.host_view(tensor) if on_npu else tensor).detach()
        short = name.split("::")[-1]
        entry: dict[str, Any] = {
            "operator": name,
            "run": run,
            "stage": label,
            "index": index,
            "device": device,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
        }
        folder = self.root / str(device)
        folder.mkdir(parents=True, exist_ok=True)
        if self.statistics:
            entry |= _statistics(values)
        else:
            moment = time.time_ns() // 1000
            stem = f"{short}.{short}_{run}.{self.task}.{_C.current_stream(device)}.{moment}"
            entry["file"] = f"{device}/{stem}.{label}.{index}.npy"
            np.save(self.root / entry["file"], _as_numpy(values))
        self.entries.append(entry)

    def finish(self) -> None:
        if not self.entries:
            return
        index = json.dumps(self.entries, indent=1)
        (self.root / "index.json").write_text(index + "\n", "utf-8")
        if self.statistics:
            for device in {e["device"] for e in self.entries}:
                with open(self.root / str(device) / "statistics.csv", "w", newline="") as file:
                    table = csv.DictWriter(file, _STATISTICS, extrasaction="ignore")
                    table.writeheader()
                    table.writerows(e for e in self.entries if e["device"] == device)


def _as_numpy(values: torch.Tensor) -> np.ndarray:
    """numpy has no bfloat16 and no fp8: those are widened to float32."""
    if (
        values.dtype in (torch.float16, torch.float32, torch.float64)
        or not values.is_floating_point()
    ):
        return values.resolve_conj().resolve_neg().numpy()
    return values.float().numpy()


def _statistics(values: torch.Tensor) -> dict[str, float]:
    wide = values.abs().double() if values.is_complex() else values.double()
    if wide.numel() == 0:
        return {"max": 0.0, "min": 0.0, "mean": 0.0, "l2norm": 0.0}
    return {
        "max": wide.max().item(),
        "min": wide.min().item(),
        "mean": wide.mean().item(),
        "l2norm": wide.norm().item(),
    }


_initialized = False
_running: _Dump | None = None


def init_dump() -> None:
    """Makes the dump ready; `set_dump` starts it."""
    global _initialized
    _C.ensure_started()
    if _initialized:
        raise RuntimeError("init_dump has been called already" + pta_error(ErrCode.ACL))
    _initialized = True


def set_dump(cfg_file: Any) -> None:
    """Starts the dump with a configuration: a JSON file's path, or the same as a dictionary."""
    global _running
    if not _initialized:
        raise RuntimeError("set_dump needs init_dump first" + pta_error(ErrCode.ACL))
    if isinstance(cfg_file, dict):
        config = cfg_file
    else:
        if not os.path.exists(cfg_file):
            raise AssertionError(
                f"cfg_file {cfg_file} path does not exists." + pta_error(ErrCode.NOT_FOUND)
            )
        config = _read(cfg_file)
    section = _checked(config)
    if _running is not None:
        _stop()
    _running = _Dump(section)
    _observe.add(_running)


def _read(path: Any) -> Any:
    """The configuration in a file, which nobody else may be able to change: it says what is written where."""
    try:
        return json.loads(ownership.read_text(path, _MAX_CONFIG))
    except ownership.Untrusted as wrong:
        raise PermissionError(f"set_dump: {wrong}" + pta_error(ErrCode.PARAM)) from wrong
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"set_dump: {path} is not JSON: {error}" + pta_error(ErrCode.PARAM)
        ) from error


def _stop() -> None:
    global _running
    if _running is not None:
        _observe.remove(_running)
        _running.finish()
    _running = None


def finalize_dump() -> None:
    """Ends the dump and writes its index."""
    global _initialized
    if not _initialized:
        raise RuntimeError("finalize_dump needs init_dump first" + pta_error(ErrCode.ACL))
    _stop()
    _initialized = False
