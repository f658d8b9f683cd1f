"""The logger of TorchAir and its EVENT level; mirrors upstream's torchair.core.utils.

The level is ERROR until `logger.setLevel` says otherwise; with TORCH_COMPILE_DEBUG=1 it is DEBUG, and everything is
written to torchair/debug.log in dynamo's debug folder as well.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import datetime
from typing import Any

__all__ = ["EVENT_LEVEL", "logger"]

#: between WARNING and ERROR: how long the steps of a compilation took
EVENT_LEVEL = 35
logging.addLevelName(EVENT_LEVEL, "EVENT")


class _Logger(logging.Logger):
    def __init__(self, name: str, level: int = logging.NOTSET):
        super().__init__(name, level)
        self._once: set[str] = set()

    def event(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Logs at EVENT_LEVEL."""
        if self.isEnabledFor(EVENT_LEVEL):
            self._log(EVENT_LEVEL, message, args, **kwargs)

    def warning_once(self, message: str) -> None:
        """A warning that is printed once in the process."""
        if message not in self._once:
            self._once.add(message)
            self.warning(message)


class _Formatter(logging.Formatter):
    """[LEVEL] TORCHAIR(pid,program):date time.ms.us [file:line]thread message"""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        milli, micro = divmod(moment.microsecond, 1000)
        when = f"{moment:%Y-%m-%d %H:%M:%S}.{milli:03d}.{micro:03d}"
        program = os.path.basename(sys.executable)
        place = f"{record.filename}:{record.lineno}"
        return (
            f"[{record.levelname}] TORCHAIR({os.getpid()},{program}):{when} [{place}]"
            f"{threading.get_native_id()} {record.getMessage()}"
        )


class _Stdout(logging.StreamHandler):
    """The stdout of the moment, which tests and notebooks replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Formatter())

    @property
    def stream(self) -> Any:
        return sys.stdout


def debug_wanted() -> bool:
    """Whether TORCH_COMPILE_DEBUG asks for everything to be written down."""
    return os.environ.get("TORCH_COMPILE_DEBUG") == "1"


def _make() -> _Logger:
    before = logging.getLoggerClass()
    logging.setLoggerClass(_Logger)
    try:
        made = logging.getLogger("torchair")
    finally:
        logging.setLoggerClass(before)
    made.setLevel(logging.DEBUG if debug_wanted() else logging.ERROR)
    if not made.handlers:
        made.addHandler(_Stdout())
    made.propagate = False
    return made  # type: ignore[return-value]


logger = _make()
_log_files: set[str] = set()


def log_to_file() -> None:
    """With TORCH_COMPILE_DEBUG=1: torchair/debug.log in dynamo's debug folder, once."""
    if not debug_wanted():
        return
    from torch._dynamo.utils import get_debug_dir

    folder = os.path.join(get_debug_dir(), "torchair")
    path = os.path.join(folder, "debug.log")
    if path in _log_files:
        return
    _log_files.add(path)
    os.makedirs(folder, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
