"""Inside the process of a planned program: what it launches, allocates, owns and waits for.

`softnpu plan` puts a directory with a `sitecustomize.py` in front of PYTHONPATH, which calls `install`; nothing happens
before the process imports torch_npu. At its end the process leaves a `softnpu.plan.recording.Recording`.
"""

from __future__ import annotations

from pathlib import Path

from softnpu import _observe


def install(directory: Path) -> None:
    """Waits for the import of torch_npu, then records into a file of this process in the directory."""

    def start() -> None:
        from softnpu.plan.record.recorder import Recorder

        Recorder(directory).start()

    _observe.after_import(start)
