"""Finds races between streams on the emulated device; docs/sanitizer.md.

`csrc/device/sanitizer.h` follows who reads and writes what, in which order. Here stand the ways to switch it on, what
Python adds to it (events that nobody records, limits of the chip), and the report at the end of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from multiprocessing import util
from typing import Any

from softnpu import _C, chips, settings
from softnpu.findings import EXIT_CODE, KINDS, Finding, terminal
from softnpu.sanitizer import _events

__all__ = ["EXIT_CODE", "KINDS", "Finding", "disable", "enable", "findings", "record", "reset"]


class _Process:
    """The sanitizer of this process."""

    def __init__(self) -> None:
        self.pid = 0
        self.warn = False
        self.silent = False  # somebody else reports
        self.ended = False

    def start(self, warn: bool) -> None:
        self.warn = warn
        if self.pid == os.getpid():
            return
        self.pid = os.getpid()
        atexit.register(self.end)
        util.Finalize(
            None, self.end, exitpriority=-100
        )  # processes of multiprocessing know no atexit

    def end(self) -> None:
        if self.ended or os.getpid() != self.pid or not _C.sanitizer_on():
            return
        self.ended = True
        _events.at_end()
        found = findings()
        if not found or self.silent:
            return
        terminal.show(found)
        if self.warn:
            return
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CODE)


_process = _Process()


def enable(*, poison: bool = False, warn: bool = False) -> None:
    """Follows the device from now on. At the end of the process findings are printed; unless `warn`, its exit code
    is 66 then. `poison` fills fresh memory and finds reads of it."""
    chip = chips.current()
    _C.sanitizer_limit(chip.max_streams, chip.max_events)
    _C.sanitizer_enable(poison)
    _process.start(warn)


def disable() -> None:
    """Ends `enable`, and forgets what was found."""
    _C.sanitizer_disable()
    _events.reset()


def reset() -> None:
    """Forgets everything: what was found, and all accesses so far."""
    _C.sanitizer_reset()
    _events.reset()


def findings() -> list[Finding]:
    """What was found so far."""
    return [Finding.of(found) for found in _C.sanitizer_findings()]


@contextlib.contextmanager
def record(*, poison: bool = False) -> Iterator[list[Finding]]:
    """What the block does wrong, for tests: the list is filled at its end."""
    was_on = _C.sanitizer_on()
    found: list[Finding] = []
    if was_on:
        _C.sanitizer_reset()
    enable_for_tests(poison)
    _events.reset()
    try:
        yield found
    finally:
        _events.at_end()
        found += findings()
        if was_on:
            reset()
            enable_for_tests(settings.current().poison)
        else:
            disable()


def enable_for_tests(poison: bool) -> None:
    """`enable` without a report at the end."""
    chip = chips.current()
    _C.sanitizer_limit(chip.max_streams, chip.max_events)
    _C.sanitizer_enable(poison)


def from_settings(upstream: str | None) -> None:
    """What the environment asks for; `upstream` is the value of TORCH_NPU_SANITIZER."""
    chosen = settings.current()
    if not chosen.enabled:
        return
    if chosen.shuffle:
        _C.shuffle(chosen.shuffle)
    if chosen.sanitize != "0" or upstream == "1":
        enable(poison=chosen.poison, warn=chosen.sanitize == "warn")


def on() -> bool:
    """Whether it follows the device now."""
    return bool(_C.sanitizer_on())


def end_of_program() -> None:
    """Finds who waits for ever."""
    _events.at_end()


def report_elsewhere() -> None:
    """`softnpu run` and pytest print the findings themselves."""
    _process.silent = True


def as_json(over: bool = True) -> list[dict[str, Any]]:
    """The findings as plain values; `over`: the program has ended."""
    if over:
        _events.at_end()
    return [found.as_dict() for found in findings()]
