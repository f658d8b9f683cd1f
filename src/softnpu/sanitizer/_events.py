"""Events that order nothing: waited for and never recorded, or recorded again before their waiter ran."""

from __future__ import annotations

import weakref
from typing import Any

from softnpu import _C


class _Wait:
    """A wait for an event that nobody had recorded."""

    def __init__(self) -> None:
        self.at = _C.sanitizer_stack()
        self.recorded = False

    def end(self) -> None:
        _waits.discard(self)
        if not self.recorded and _C.sanitizer_on():
            _C.sanitizer_report(
                "f",
                "a stream waited for an event that nobody ever recorded, which orders nothing",
                "event.record(<the stream to wait for>) before the wait",
                self.at,
            )


_waits: set[_Wait] = set()


def waited(event: Any) -> None:
    """A wait for an event that is not recorded yet."""
    wait = _Wait()
    _waits.add(wait)
    event._unrecorded_wait = wait
    weakref.finalize(event, wait.end).atexit = False


def recorded(event: Any) -> None:
    """It is recorded after all."""
    event._unrecorded_wait.recorded = True
    _waits.discard(event._unrecorded_wait)


def external_record(event: Any) -> None:
    """An external event that is recorded while its last record has not been used."""
    if event._waits and event._signal.given:
        _C.sanitizer_report(
            "f",
            "an external event was recorded again before its waiter ran: one of the two records is lost",
            "let the waiter run and reset the event before it is recorded again",
            _C.sanitizer_stack(),
            event._recorded_at,
            "the record before",
        )
    event._recorded_at = _C.sanitizer_stack()


def at_end() -> None:
    """The program is over: whoever waits now waits for ever."""
    for wait in list(_waits):
        wait.end()
    for text in _C.waiting_streams():
        _C.sanitizer_report(
            "f",
            f"at the end of the program {text}, which nobody records",
            "record the event on another stream",
        )


def reset() -> None:
    for wait in list(_waits):
        wait.recorded = True
    _waits.clear()
