"""The settings that a test asks for by `@pytest.mark.npu`, and those of this process."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import pytest

from softnpu import settings

_VARIABLES = {
    "soc": "SOFTNPU_SOC",
    "devices": "SOFTNPU_DEVICES",
    "memory": "SOFTNPU_MEMORY",
    "strict": "SOFTNPU_STRICT",
}
MARK = "npu(soc=None, devices=None, memory=None, strict=None, leak=0): the device that the test gets: chip, number of \
devices, memory of each, whether documented constraints raise, and device memory that it may leave behind"


def options(parser: pytest.Parser) -> None:
    group = parser.getgroup("npu", "the emulated NPU")
    group.addoption("--npu-soc", metavar="CHIP", help="the chip, as SOFTNPU_SOC")
    group.addoption("--npu-memory-limit", metavar="SIZE", help="memory of each device, e.g. 16GiB")
    group.addoption(
        "--npu-sanitize",
        action="store_true",
        help="a test in which a race is found fails: SOFTNPU_SANITIZE=1",
    )
    group.addoption(
        "--npu-summary",
        action="store_true",
        help="operators used, peak memory by test, constraints broken",
    )


def apply(option: Any) -> None:
    """Options become settings of this process and those that it starts, before anything reads them."""
    chosen = {"SOFTNPU_SOC": option.npu_soc, "SOFTNPU_MEMORY": option.npu_memory_limit}
    if option.npu_sanitize:
        chosen["SOFTNPU_SANITIZE"] = "1"
    chosen = {variable: value for variable, value in chosen.items() if value}
    if not chosen:
        return
    try:
        wanted = settings.read({**os.environ, **chosen})
    except ValueError as wrong:
        raise pytest.UsageError(str(wrong)) from None
    os.environ.update(chosen)
    if "torch_npu" in sys.modules and settings.current() != wanted:
        raise pytest.UsageError(
            "--npu-soc, --npu-memory-limit and --npu-sanitize come too late: torch_npu was imported before pytest read "
            f"them (by a plugin?). Set {', '.join(chosen)} in the environment instead."
        )


def wanted(item: pytest.Item) -> dict[str, str]:
    """Variables whose value the marks of a test ask for, outer marks first."""
    found: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("npu"))):
        unknown = set(mark.kwargs) - {*_VARIABLES, "leak"}
        if mark.args or unknown:
            what = f"{sorted(unknown)[0]!r}" if unknown else f"{mark.args[0]!r} without a name"
            raise pytest.UsageError(
                f"{item.nodeid}: pytest.mark.npu takes soc, devices, memory, strict and leak, but received {what}"
            )
        found.update({k: v for k, v in mark.kwargs.items() if v is not None and k != "leak"})
    return {_VARIABLES[name]: _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def differing(item: pytest.Item) -> dict[str, str]:
    """The variables by which a test needs another device than this process has; empty if it can run here."""
    asked = wanted(item)
    if not asked:
        return {}
    try:
        target = settings.read({**os.environ, **asked})
        here = settings.current() if "torch_npu" in sys.modules else settings.read()
    except ValueError as wrong:
        raise pytest.UsageError(f"{item.nodeid}: {wrong}") from None
    return asked if target != here else {}


def allowed_leak(item: pytest.Item) -> int:
    for mark in item.iter_markers("npu"):
        if "leak" in mark.kwargs:
            return _bytes(mark.kwargs["leak"])
    return 0


def _bytes(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", str(value), re.IGNORECASE)
    if match is None:
        raise pytest.UsageError(f"leak must be a size such as 1MiB, but is {value!r}")
    return int(float(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2].upper()])
