"""The program that is recorded and the machine that it runs on."""

from __future__ import annotations

import os
import platform
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from softnpu._version import __version__


def made_by() -> dict[str, Any]:
    """What a reader of the recording must know of this machine."""
    about: dict[str, Any] = {
        "softnpu": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    module = sys.modules.get("torch_npu")
    if module is not None:
        about["torch_npu"] = getattr(module, "__version__", "")
        if torch.npu.is_available():
            properties = torch.npu.get_device_properties(torch.npu.current_device())
            about["device"] = properties.name
            about["emulated"] = bool(getattr(properties, "emulated", False))
    return about


def run_program(program: str, arguments: Sequence[str], module: bool) -> None:
    """As `python program arguments` does, in this process."""
    sys.argv = [program, *arguments]
    if module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program).resolve().parent))
        runpy.run_path(program, run_name="__main__")
