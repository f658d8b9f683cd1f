"""The program that analyzes one profile: `python _offline.py DIRECTORY EXPORT_TYPES`.

Analyzing needs neither PyTorch nor a device. The packages around it are entered without running their `__init__`, so that
the process is at work in a moment.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

_PACKAGES = ("torch_npu", "torch_npu.profiler", "torch_npu.utils")


def main(directory: str, export_type: list[str] | None) -> None:
    root = Path(__file__).resolve().parents[2]
    sys.path[0] = str(root)  # it was the directory of this file
    for name in _PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    importlib.import_module("torch_npu.profiler._analyse").run(directory, export_type)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
