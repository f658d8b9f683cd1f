"""With `--npu-sanitize` (or SOFTNPU_SANITIZE=1) a test in which the sanitizer finds something fails, unless its mark
says that it races on purpose."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from softnpu.findings import terminal

MARK = "npu_races(reason): the test races on purpose; the sanitizer's findings do not fail it."


def _sanitizer() -> Any:
    """Only a process that has torch_npu has one, and only if it was switched on."""
    module = sys.modules.get("softnpu.sanitizer")
    return module if module is not None and module.on() else None


def begin() -> None:
    """Each test begins with no memory of the others."""
    sanitizer = _sanitizer()
    if sanitizer is not None:
        sanitizer.report_elsewhere()
        sanitizer.reset()


def reason(item: pytest.Item) -> str | None:
    """Why the test races, if it says so."""
    mark = item.get_closest_marker("npu_races")
    if mark is None:
        return None
    if len(mark.args) != 1 or mark.kwargs or not isinstance(mark.args[0], str) or not mark.args[0]:
        raise pytest.UsageError(
            f"{item.nodeid}: npu_races needs one argument, the reason as a text"
        )
    return mark.args[0]


def end(item: pytest.Item) -> None:
    """Fails the test if it raced, and not on purpose."""
    sanitizer = _sanitizer()
    if sanitizer is None:
        return
    sanitizer.end_of_program()
    found = sanitizer.findings()
    sanitizer.reset()
    if not found or reason(item) is not None:
        return
    text = io.StringIO()
    terminal.show(found, Console(file=text, width=200, color_system=None))
    pytest.fail(text.getvalue(), pytrace=False)
