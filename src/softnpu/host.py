"""The host: its memory, and the processes on it that use the emulated devices.

A process that starts the device listens on a socket in a folder of its user's; whoever asks there (`softnpu info`,
`npu-smi info`) is told the memory of each device that the process holds. A process that nobody asks does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PATIENCE = 1.0  # seconds that a busy process has to answer


def memory() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Process:
    """A process on the devices: bytes that it holds, by the device's number on the machine."""

    pid: int
    name: str
    memory: dict[int, int] = field(default_factory=dict)


def _folder(user: int) -> Path:
    return Path(tempfile.gettempdir()) / f"softnpu-{user}"


def announce(held: Callable[[], dict[int, int]]) -> None:
    """Lets `processes` find this process; `held` says what it holds. Where no socket can be, it stays unseen."""
    pid = os.getpid()
    door = _folder(os.getuid()) / f"{pid}.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.parent.mkdir(mode=0o700, exist_ok=True)
        door.unlink(missing_ok=True)
        listener.bind(str(door))
        listener.listen()
    except OSError:  # a read-only or overlong temporary folder
        listener.close()
        return

    def answer() -> None:
        while True:
            asker, _ = listener.accept()
            with asker, contextlib.suppress(OSError):  # who asked may have gone
                asker.sendall(json.dumps(held()).encode())

    def leave() -> None:
        if os.getpid() == pid:  # not in a fork
            door.unlink(missing_ok=True)

    threading.Thread(target=answer, name="softnpu processes", daemon=True).start()
    atexit.register(leave)


def processes() -> list[Process]:
    """Those of this user, and of all users for root, in the order of their numbers."""
    return sorted(_ask_all(), key=lambda process: process.pid)


def _ask_all() -> Iterator[Process]:
    everyone = os.getuid() == 0
    folders = _folder(0).parent.glob("softnpu-[0-9]*") if everyone else [_folder(os.getuid())]
    for folder in folders:
        for door in folder.glob("*.sock"):
            pid = int(door.stem)
            try:
                name = Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
            except OSError:
                door.unlink(missing_ok=True)  # it was killed
                continue
            yield Process(pid, name, _ask(door))


def _ask(door: Path) -> dict[int, int]:
    """What the process behind a door holds; nothing if it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_PATIENCE)
        try:
            line.connect(str(door))
            told = b"".join(iter(lambda: line.recv(65536), b""))
        except OSError:
            return {}
    return {int(device): held for device, held in json.loads(told or b"{}").items()}
