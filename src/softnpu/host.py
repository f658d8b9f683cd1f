"""The host: its memory, and the processes on it that use the emulated devices.

A process that starts the device listens on a socket of Linux's abstract namespace, which is no file: it is gone when the
process is, however it ends. Whoever asks there (`softnpu info`, `npu-smi info`) is told the memory of each device that
the process holds. A process that nobody asks does nothing. Both sides look at who the other one is, as the kernel knows
it: users see their own processes, root sees everybody's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from softnpu.settings import MAX_DEVICES

_TIMEOUT = 1.0  # seconds that a busy process has to answer
_TOTAL_TIMEOUT = 5.0  # seconds for all of them
_MAX_BYTES = 1 << 14  # of an answer: 64 devices with 20 digits each are below 2 KiB
_MAX_PROCESSES = 1024
_LISTENS = 0x10000  # SO_ACCEPTCON, in the flags of /proc/net/unix
_SOCKETS = Path("/proc/net/unix")
_PREFIX = "softnpu"


def memory() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Process:
    """A process on the devices: bytes that it holds, by the device's number on the machine; `note` says why if none."""

    pid: int
    name: str
    memory: dict[int, int] = field(default_factory=dict)
    note: str = ""


class _BadAnswer(Exception):
    """An answer that is none; the message says why."""


def announce(held: Callable[[], dict[int, int]]) -> None:
    """Lets `processes` find this process; `held` says what it holds. Where no such socket can be, it stays unseen."""
    if sys.platform != "linux":
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{_PREFIX}/{os.geteuid()}/{os.getpid()}")
        listener.listen()
    except OSError:  # a sandbox, or somebody has taken the name
        listener.close()
        return
    os.register_at_fork(after_in_child=listener.close)  # else the name outlives the process
    threading.Thread(
        target=_answer, args=(listener, held), name="softnpu processes", daemon=True
    ).start()


def _answer(listener: socket.socket, held: Callable[[], dict[int, int]]) -> None:
    while True:
        try:
            asker, _ = listener.accept()
        except OSError:  # too many open files, for example
            time.sleep(_TIMEOUT)
            continue
        with asker, contextlib.suppress(OSError):  # who asked may have gone
            asker.settimeout(_TIMEOUT)  # or may not listen
            _, user = _peer(asker)
            if user in (0, os.geteuid()):
                asker.sendall(json.dumps(held()).encode())


def processes() -> list[Process]:
    """Those of this user, and of all users for root, in the order of their numbers."""
    if sys.platform != "linux":
        return []
    return sorted(_ask_all(), key=lambda process: process.pid)


def _ask_all() -> Iterator[Process]:
    end = time.monotonic() + _TOTAL_TIMEOUT
    for user, address in _addresses():
        timeout = min(_TIMEOUT, end - time.monotonic())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(max(timeout, 0.001))
            try:
                connection.connect("\0" + address)
                pid, owner = _peer(connection)
            except OSError:
                continue  # it has ended, or its owner lets nobody in
            if owner != user or not pid:  # the name says something else
                continue
            name = _name(pid)
            try:
                if timeout <= 0:
                    raise _BadAnswer("not asked, others took too long")
                yield Process(pid, name, _ask(connection, time.monotonic() + timeout))
            except _BadAnswer as wrong:
                yield Process(pid, name, note=str(wrong))


def _addresses() -> list[tuple[int, str]]:
    """User and name of each listening socket of ours."""
    try:
        lines = _SOCKETS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found: dict[tuple[int, str], None] = {}
    for line in lines:
        fields = line.split(maxsplit=7)
        match = (
            re.fullmatch(rf"@({_PREFIX}/([0-9]{{1,10}})/[0-9]{{1,10}})", fields[-1])
            if fields
            else None
        )
        if match is None or len(fields) != 8 or fields[3] != f"{_LISTENS:08X}":
            continue
        if os.geteuid() in (0, int(match[2])):
            found[int(match[2]), match[1]] = None
    return list(found)[:_MAX_PROCESSES]


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel knows them."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    pid, user, _ = struct.unpack("3i", credentials)
    return pid, user


def _name(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "?"
    return "".join(c if c.isprintable() else "?" for c in name)


def _ask(connection: socket.socket, end: float) -> dict[int, int]:
    """What the process at the other end holds. Raises _BadAnswer if it does not say so in time, or says something else."""
    told = b""
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise _BadAnswer("did not answer in time")
        connection.settimeout(left)
        try:
            part = connection.recv(_MAX_BYTES)
        except TimeoutError:
            raise _BadAnswer("did not answer in time") from None
        except OSError as wrong:
            raise _BadAnswer(f"did not answer: {wrong.strerror}") from None
        told += part
        if not part:
            return _parse(told)
        if len(told) > _MAX_BYTES:
            raise _BadAnswer(f"answered with more than {_MAX_BYTES} bytes")


def _parse(told: bytes) -> dict[int, int]:
    try:
        answer = json.loads(told)
    except (ValueError, RecursionError):
        raise _BadAnswer("answered with something that is not JSON") from None
    if not isinstance(answer, dict):
        raise _BadAnswer("answered with something that is no table of devices")
    for device, held in answer.items():
        known = re.fullmatch("[0-9]{1,2}", device) and int(device) < MAX_DEVICES
        if not known or type(held) is not int or not 0 <= held < 2**63:
            raise _BadAnswer("answered with a device or a size that cannot be")
    return {int(device): held for device, held in answer.items()}
