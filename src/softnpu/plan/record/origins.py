"""Where memory is asked for: the program's line, its modules, the phase. Called by the allocator for each block."""

from __future__ import annotations

import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from softnpu.plan.record.log import Log
from softnpu.plan.recording import Origin

_CALL = torch.nn.Module._call_impl.__code__
_SITE = ("site-packages", "dist-packages")


class Origins:
    """A table of origins; `found` is told of each outermost module at its first call."""

    def __init__(
        self, log: Log, found: Callable[[torch.nn.Module], None], launch: Callable[[], int]
    ) -> None:
        self.table: list[Origin] = []
        self._log, self._found, self._launch = log, found, launch
        self._numbers: dict[Any, int] = {}
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._library: dict[CodeType, bool] = {}
        packages = Path(__file__).resolve().parents[3]
        own = [packages / name for name in ("softnpu", "torch_npu", "torchair", "npugraph_ex", "acl")]  # fmt: skip
        self._hidden = tuple(f"{path}/" for path in (Path(torch.__file__).parent, *own))
        self._standard = sysconfig.get_path("stdlib") + "/"

    def context(self) -> tuple[int, int, int]:
        """The place in the order, the number of the origin, and that of the launch around it."""
        line, modules = self._walk(sys._getframe())
        if line is None:  # a thread of autograd's: what the main thread is at
            main = sys._current_frames().get(threading.main_thread().ident or 0)
            line = self._walk(main)[0] if main is not None else None
        names = self._path(modules)
        key = (line, names, self._log.phase)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.table)
            file, at, function = line or ("", 0, "")
            self.table.append(Origin(file, at, function, self._log.phase, names))
        return self._log.tick(), number, self._launch()

    def _walk(
        self, frame: FrameType | None
    ) -> tuple[tuple[str, int, str] | None, list[torch.nn.Module]]:
        """The innermost line that is the program's or its libraries', and the modules, outermost first."""
        line, modules = None, []
        while frame is not None:
            code = frame.f_code
            if code is _CALL:
                modules.append(frame.f_locals["self"])
            elif line is None and not self._is_library(code):
                line = (code.co_filename, frame.f_lineno, code.co_name)
            frame = frame.f_back
        return line, modules[::-1]

    def _is_library(self, code: CodeType) -> bool:
        known = self._library.get(code)
        if known is None:
            name = code.co_filename
            standard = name.startswith(self._standard) and not any(part in name for part in _SITE)
            made = "torchinductor_" in name  # a compiler's code
            known = self._library[code] = name.startswith((*self._hidden, "<")) or standard or made
        return known

    def _path(self, modules: list[torch.nn.Module]) -> tuple[str, ...]:
        if not modules:
            return ()
        root = modules[0]
        if root not in self._roots:
            self._roots.add(root)
            for name, module in root.named_modules():
                self._names[module] = name
            self._found(root)
        self._log.begin()
        return tuple(self._names.get(module, type(module).__name__) for module in modules)
