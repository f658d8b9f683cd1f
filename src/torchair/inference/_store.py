"""The files behind torchair.inference.cache_compile: written and read with care, never believed without a check.

    <folder>/compiled_module     magic, sha256 of the rest, the rest: a pickle of plain values, in which no class is
                                 ever looked up
    <folder>/host.<random>/      the libraries of the compiled code, which the record names; one such folder for every
                                 compilation, so that a compiler never finds a file in it that it has not written

Nothing is read before every folder on the way is known to belong to the user who runs the program, or to root, and to
be closed to other writers. Where that is not so, `Place` is a private folder of this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import pickle
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softnpu import ownership

FILE = "compiled_module"
_LIBRARIES = "host."
_MAGIC = b"softnpu torchair cache 4\n"


class BadCache(Exception):
    """The file cannot be used; the message says why."""


class _Plain(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise BadCache(f"it names {module_name}.{global_name}, but holds plain values alone")


def read(path: Path) -> dict[str, Any]:
    """The record in the file. Raises FileNotFoundError, or BadCache if it may not be used."""
    if not os.path.lexists(path):
        raise FileNotFoundError(f"the cache file {path} does not exist")
    try:
        ownership.check_path(path.parent)
        with ownership.opened(path, follow=False) as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) != 0o600:
                raise BadCache("others may read or write it: its mode must be 600")
            everything = file.read()
    except ownership.Untrusted as wrong:
        raise BadCache(str(wrong)) from wrong
    if not everything.startswith(_MAGIC):
        raise BadCache("it is no cache of this version")
    digest, _, content = everything[len(_MAGIC) :].partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise BadCache("its content is damaged")
    try:
        record = _Plain(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError) as error:
        raise BadCache(f"it cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise BadCache("it holds no record")
    return record


def write(path: Path, record: dict[str, Any]) -> None:
    """Replaces the file as a whole: readers see the old one or the new one."""
    content = pickle.dumps(record)
    digest = hashlib.sha256(content).hexdigest().encode()
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + digest + b"\n" + content)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class Place:
    """Where one function's cache is kept: its folder, or a private one of this process if that cannot be trusted."""

    def __init__(self, path: Path):
        self.path = path
        self.refused: str | None = None
        self._building: tuple[Path, int] | None = None
        try:
            ownership.check_path(path.parent)
        except ownership.Untrusted as wrong:
            self._move(str(wrong))

    def _move(self, why: str) -> None:
        self.refused, self.path = why, private_folder() / FILE

    def prepare(self) -> None:
        """Makes the folder, closed to others."""
        try:
            ownership.make_private(self.path.parent)
        except ownership.Untrusted as wrong:  # it became so since it was looked at
            self._move(str(wrong))
            ownership.make_private(self.path.parent)

    def new_libraries(self) -> Path:
        """A new and empty folder for a compiler, locked until `keep` or `drop`: no other process clears it away."""
        self.drop()
        self.prepare()
        folder = Path(tempfile.mkdtemp(prefix=_LIBRARIES, dir=self.path.parent))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._building = (folder, descriptor)
        return folder

    def keep(self, record: dict[str, Any]) -> None:
        """Writes the record, with the digests of the libraries that were compiled for it."""
        if self._building is None:
            raise RuntimeError("nothing was compiled")
        folder, descriptor = self._building
        try:
            with self._locked(fcntl.LOCK_EX):
                write(self.path, record | {"host": folder.name, "files": digests(folder)})
                self._sweep(folder.name)
        finally:
            os.close(descriptor)
            self._building = None

    def drop(self) -> None:
        """Removes what was compiled and not kept; loaded libraries stay in memory."""
        if self._building is not None:
            folder, descriptor = self._building
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
            self._building = None

    def forget(self) -> None:
        """Removes the record, whatever it is."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.path.unlink()

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[dict[str, Any], Path]]:
        """The record and the folder of its libraries, which was checked and stays while it is used."""
        if not os.path.lexists(self.path):
            raise FileNotFoundError(f"the cache file {self.path} does not exist")
        with self._locked(fcntl.LOCK_SH):
            record = read(self.path)
            name = record.get("host")
            if not isinstance(name, str) or not name.startswith(_LIBRARIES) or "/" in name:
                raise BadCache("it names no folder of libraries")
            folder = self.path.parent / name
            verify(folder, record["files"])
            yield record, folder

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    def _sweep(self, kept: str) -> None:
        """Removes libraries of earlier records, and of compilations whose process was killed."""
        for folder in self.path.parent.glob(f"{_LIBRARIES}*"):
            if folder.name == kept or folder.is_symlink() or not folder.is_dir():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            except BlockingIOError:
                pass  # another process compiles there
            finally:
                os.close(descriptor)


def private_folder() -> Path:
    """A new folder of this process, where nobody else can put anything."""
    try:
        return ownership.private_folder("torchair_cache_")
    except ownership.Untrusted as wrong:
        raise RuntimeError(f"cache_compile: {wrong}") from None


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of each file below the folder, by relative path; links and special files are refused."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = os.lstat(path)
        ownership.check(path, status)
        if stat.S_ISREG(status.st_mode):
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not stat.S_ISDIR(status.st_mode):
            raise ownership.Untrusted(f"{path} is neither a file nor a folder")
    return found


def verify(folder: Path, expected: dict[str, str]) -> None:
    """Raises BadCache unless the folder holds the files that were written there, and no others."""
    try:
        if folder.is_symlink():
            raise BadCache(f"{folder} is a link")
        ownership.check_path(folder)
        found = digests(folder) if folder.exists() else {}
    except OSError as wrong:
        raise BadCache(str(wrong)) from wrong
    for name, digest in expected.items():
        if name not in found:
            raise BadCache(f"the compiled file {name} is missing")
        if found[name] != digest:
            raise BadCache(f"the compiled file {name} was changed")
    for name in found:
        if name not in expected:
            raise BadCache(f"the file {name} was added")
