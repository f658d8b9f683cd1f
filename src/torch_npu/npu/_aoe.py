"""set_aoe's working directory: one JSON file for each distinct operator that runs."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from torch_npu.npu import _observe

_directory: Path | None = None
_seen: set[str] = set()


def start(directory: str) -> None:
    """Describes every distinct operator (name, input shapes and dtypes) under the directory from now on."""
    global _directory
    stop()
    _directory = Path(directory)
    _observe.add(_write)


def stop() -> None:
    global _directory
    _directory = None
    _seen.clear()
    _observe.remove(_write)


def _write(stage: int, name: str, tensors: list[torch.Tensor]) -> None:
    if stage != _observe.INPUTS or _directory is None:
        return
    inputs = [
        {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")} for t in tensors
    ]
    text = json.dumps({"op": name, "inputs": inputs})
    if text in _seen:
        return
    _seen.add(text)
    file = _directory / f"{name.split('::')[-1]}_{len(_seen)}.json"
    file.write_text(text + "\n", "utf-8")
