"""The file behind torchair.inference.cache_compile: written and read with care, never believed without a check.

    magic, sha256 of the rest, the rest: a pickle of plain values (no class is ever looked up while it is read)

The file and its folders belong to the user who runs the program and are closed to others. The libraries that the
compiled code loads lie beside it, and their digests are in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import pickle
import stat
from pathlib import Path
from typing import Any

FILE = "compiled_module"
_MAGIC = b"softnpu torchair cache 2\n"


class BadCache(Exception):
    """The file cannot be used; the message says why."""


class _Plain(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise BadCache(f"it names {module_name}.{global_name}, but holds plain values alone")


def write(path: Path, record: dict[str, Any]) -> None:
    """Replaces the file as a whole: readers see the old one or the new one."""
    private_folder(path.parent)
    content = pickle.dumps(record)
    digest = hashlib.sha256(content).hexdigest().encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_MAGIC + digest + b"\n" + content)
    os.replace(temporary, path)


def read(path: Path) -> dict[str, Any]:
    """The record in the file. Raises FileNotFoundError, or BadCache if it may not be used."""
    if not path.exists():
        raise FileNotFoundError(f"the cache file {path} does not exist")
    for status in (os.lstat(path), os.stat(path)):
        if status.st_uid != os.getuid():
            raise BadCache("it belongs to another user")
    if stat.S_IMODE(os.stat(path).st_mode) != 0o600:
        raise BadCache("others may read or write it: its mode must be 600")
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        everything = file.read()
    if not everything.startswith(_MAGIC):
        raise BadCache("it is no cache of this version")
    digest, _, content = everything[len(_MAGIC) :].partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise BadCache("its content is damaged")
    try:
        record = _Plain(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError) as error:
        raise BadCache(f"it cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise BadCache("it holds no record")
    return record


def private_folder(folder: Path) -> None:
    """Makes the folder, closed to others, with whatever parents it lacks."""
    for one in reversed([folder, *folder.parents]):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of each library below the folder, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.so"))
    }


def verify(folder: Path, expected: dict[str, str]) -> None:
    """Raises BadCache if a library is missing or is not the one that was compiled."""
    found = digests(folder) if folder.exists() else {}
    for name, digest in expected.items():
        if name not in found:
            raise BadCache(f"the compiled library {name} is missing")
        if found[name] != digest:
            raise BadCache(f"the compiled library {name} was changed")
