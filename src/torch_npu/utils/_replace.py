"""Writing a file as a whole: readers see the old content or the new one, also after a crash.

The content goes to a draft in the same folder, created exclusively under a name that nobody can guess, and takes the
file's place when it is complete and on the disk. A draft is locked while it is written: the next writer in the folder
removes drafts whose process was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable
from typing import IO

_DRAFT = re.compile(r"\.save_async\.[0-9a-f]{32}")


def replace_file(path: str, write: Callable[[IO[bytes]], None]) -> None:
    """Gives the file what `write` writes; its mode and owner stay. `path` is no link."""
    folder = os.path.dirname(path) or "."
    before = _status(path)
    if before is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    _sweep(folder)
    draft, descriptor = _create(folder, before)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(descriptor)
            os.replace(draft, path)  # still locked
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(draft)
        raise
    _sync_folder(folder)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _create(folder: str, before: os.stat_result | None) -> tuple[str, int]:
    """A new draft, locked, with the mode and owner of the file that it replaces."""
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        draft = os.path.join(folder, f".save_async.{secrets.token_hex(16)}")
        descriptor = os.open(draft, flags, mode)
        try:
            _lock(descriptor)
            if os.fstat(descriptor).st_nlink:
                if before is not None:
                    _make_alike(descriptor, before)
                return draft, descriptor
        except BlockingIOError:
            pass  # a sweep came between the two calls
        os.close(descriptor)


def _make_alike(descriptor: int, before: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(PermissionError):  # only root gives files away
            os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks: there drafts of killed processes stay
        pass


def _sweep(folder: str) -> None:
    """Removes this user's drafts that nobody is writing."""
    with os.scandir(folder) as entries:
        drafts = [entry.path for entry in entries if _DRAFT.fullmatch(entry.name)]
    for draft in drafts:
        try:
            descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # gone, somebody else's, or no file
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.remove(draft)
        except OSError:
            pass  # its writer lives, it is gone, or there are no locks
        finally:
            os.close(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as wrong:
        if wrong.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)
