"""Whose files these are: what a program runs or obeys must belong to its user or to root, closed to other writers.

    ownership.check_path(folder)             every folder on the way, and the links between them
    with ownership.opened(config) as file:   one file, checked after it was opened

A group that only the user is a member of (the usual one of Debian, Fedora and the like, whose umask is 002) does not
count as other writers. Folders with the sticky bit that root owns, such as /tmp, may be open to all: nobody can
replace there what belongs to somebody else.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import grp
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_MAX_LINKS = 40  # as the kernel


class Untrusted(OSError):
    """A file or folder that somebody else can change; the message names it and says why."""


def reason(status: os.stat_result, *, sticky: bool = False) -> str | None:
    """Why somebody else can change what has this status, or None. `sticky`: open folders with the sticky bit will do."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}, not to user {os.geteuid()} or root"
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):  # the mode of a link has no meaning
        return None
    if sticky and stat.S_ISDIR(status.st_mode) and mode & stat.S_ISVTX and status.st_uid == 0:
        return None
    if mode & stat.S_IWOTH:
        return f"may be written by everybody (mode {mode:o})"
    if mode & stat.S_IWGRP and not _only_ours(status.st_gid):
        return f"may be written by group {status.st_gid} (mode {mode:o})"
    return None


def open_to_all(path: Path) -> bool:
    """Whether everybody may write to the file or folder: the least to ask of code that the user has named."""
    return bool(os.stat(path).st_mode & stat.S_IWOTH)


def check(path: Path, status: os.stat_result | None = None, *, sticky: bool = False) -> None:
    """Raises Untrusted if somebody else can change the file or folder itself; links are not followed."""
    wrong = reason(os.lstat(path) if status is None else status, sticky=sticky)
    if wrong is not None:
        raise Untrusted(f"{path} {wrong}")


def check_path(path: Path) -> None:
    """Raises Untrusted if somebody else can put another file or folder in the place of `path`.

    Every part that exists is looked at from the root on, links as what they are and as what they lead to. What does not
    exist yet is for the caller to make.
    """
    waiting = list(reversed(Path(os.path.abspath(path)).parts))
    here = Path(waiting.pop())
    check(here, sticky=True)
    links = 0
    while waiting:
        part = waiting.pop()
        if part == "..":  # of a link
            here = here.parent
            continue
        following = here / part
        try:
            status = os.lstat(following)
        except (FileNotFoundError, NotADirectoryError):
            return
        check(following, status, sticky=bool(waiting))
        if not stat.S_ISLNK(status.st_mode):
            here = following
            continue
        links += 1
        if links > _MAX_LINKS:
            raise Untrusted(f"{path} leads through more than {_MAX_LINKS} links")
        target = Path(os.readlink(following))
        if target.is_absolute():
            here = Path(target.parts[0])
        waiting += reversed([p for p in target.parts if p != target.anchor])


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[IO[bytes]]:
    """A regular file to read from, which nobody else can write to; what is checked is what was opened."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe does not keep us waiting
    try:
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as wrong:
        if not follow and os.path.islink(path):
            raise Untrusted(f"{path} is a link") from wrong
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(f"{path} is not a regular file")
        check(Path(path), status)
        yield file


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """The text of a file that nobody else can write to, of at most so many bytes."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Untrusted(f"{path} has more than {most} bytes")
    return content.decode("utf-8")


def make_private(folder: Path) -> None:
    """Makes the folder, closed to others, with whatever parents it lacks, and checks the whole way."""
    check_path(folder)
    for one in reversed([folder, *folder.parents]):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)
    check_path(folder)


def private_folder(prefix: str) -> Path:
    """A new folder of mode 700 where nobody else can put anything, removed when this process ends."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/dev/shm", str(Path.home()))):
        try:
            check_path(Path(parent) / secrets.token_hex(8))  # of something in it
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError:
            continue
        atexit.register(_remove, folder, os.getpid())
        return folder
    raise Untrusted(
        "no folder is private enough; set TMPDIR to one that belongs to this user and that others cannot write to"
    )


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _only_ours(group: int) -> bool:
    """Whether the group has this user for its only member: it is the user's first, of the same name, without others."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = user.pw_gid == group and user.pw_name == found.gr_name
    return own and not set(found.gr_mem) - {user.pw_name}
