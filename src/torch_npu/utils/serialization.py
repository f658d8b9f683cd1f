"""torch_npu.utils.save_async: torch.save that does not keep the program waiting for the disk.

A call copies what it saves, so that the program may change it at once, and returns; one thread writes, in the order of the
calls. A file appears under its name when it is complete. The interpreter ends after the last write; a process that ends
by os._exit or a signal loses what is not written yet. A forked process has a thread of its own.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import torch
from torch.serialization import DEFAULT_PROTOCOL, _check_dill_version, _open_zipfile_writer, _save

from torch_npu._errors import ErrCode, pta_error
from torch_npu.utils._replace import replace_file

__all__ = ["load", "save_async"]

Target = str | os.PathLike[str] | IO[bytes]


def load(
    f: Target,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """torch.load, which knows the device here: upstream's own exists because PyTorch's did not."""
    return torch.load(
        f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **pickle_load_args
    )


_lock = threading.Lock()
_writer: ThreadPoolExecutor | None = None
_failed: list[tuple[str, BaseException]] = []


class _Snapshot:
    """The records of an archive, as torch.save makes them, with the data copied."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Any, int]] = []

    def write_record(self, name: str, data: Any, size: int) -> None:
        if torch.is_storage(data) and torch._C._storage_Use_Count(data._cdata) > 1:
            data = (
                data.clone()
            )  # it is the program's own: what came from a device is a copy already
        self.records.append((name, data, size))

    def write_record_metadata(self, name: str, size: int) -> None:
        raise NotImplementedError("save_async: torch.serialization.skip_data is not supported")


def save_async(
    obj: object,
    f: Target,
    pickle_module: Any = pickle,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    model: torch.nn.Module | None = None,
) -> None:
    """Saves an object as torch.save does, while the program goes on.

    Args:
        obj: what torch.save takes; it is copied before the call returns.
        f: a path, or a file that stays open until the interpreter ends.
        pickle_module, pickle_protocol: as of torch.save.
        _use_new_zipfile_serialization: must be True.
        _disable_byteorder_record: leave the byte order out of the archive.
        model: the module that is trained. Its next backward pass waits for the copy, which here is complete already.

    Raises:
        RuntimeError: an earlier save failed; its error is the cause. Failures that no call reports are told at exit.
    """
    if not _use_new_zipfile_serialization:
        raise RuntimeError(
            "save_async: _use_new_zipfile_serialization must be True: the old format is not for NPU tensors"
            + pta_error(ErrCode.PARAM)
        )
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"save_async: model must be a torch.nn.Module, but received {type(model).__name__}"
            + pta_error(ErrCode.TYPE)
        )
    if isinstance(f, (str, os.PathLike)):
        f = os.path.realpath(os.fspath(f))  # the program may change its directory, and its links
    elif not hasattr(f, "write"):
        raise TypeError(
            f"save_async: f must be a path or a file, but received {type(f).__name__}"
            + pta_error(ErrCode.TYPE)
        )
    _raise_failure()
    _check_dill_version(pickle_module)
    snapshot = _Snapshot()
    _save(obj, snapshot, pickle_module, pickle_protocol, _disable_byteorder_record)
    future = _thread().submit(_write, snapshot, f)
    future.add_done_callback(lambda done: _note(done, str(f)))


def _thread() -> ThreadPoolExecutor:
    """One thread: two saves to one file end with the later one."""
    global _writer
    with _lock:
        if _writer is None:
            _writer = ThreadPoolExecutor(1, "npu-save-async")
            # Before atexit, and also in processes of multiprocessing, which end without it.
            threading._register_atexit(_finish)  # type: ignore[attr-defined]
        return _writer


def _begin_in_fork() -> None:
    """The thread, what it has to write and its failures are the parent's."""
    global _writer, _lock
    _lock, _writer = threading.Lock(), None
    _failed.clear()


os.register_at_fork(after_in_child=_begin_in_fork)


def _write(snapshot: _Snapshot, f: str | IO[bytes]) -> None:
    if not isinstance(f, str) or _is_special(f):
        _write_archive(snapshot, f)
    else:
        replace_file(f, lambda file: _write_archive(snapshot, file))


def _is_special(path: str) -> bool:
    """Whether something other than a file is there, such as a pipe: it is written to, not replaced."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _write_archive(snapshot: _Snapshot, target: str | IO[bytes]) -> None:
    with _open_zipfile_writer(target) as archive:
        for name, data, size in snapshot.records:
            archive.write_record(name, data, size)


def _note(done: Future[None], name: str) -> None:
    wrong = done.exception()
    if wrong is not None:
        with _lock:
            _failed.append((name, wrong))


def _raise_failure() -> None:
    with _lock:
        failed = _failed.pop(0) if _failed else None
    if failed is not None:
        name, wrong = failed
        raise RuntimeError(
            f"save_async: an earlier save to {name} failed: {wrong}" + pta_error(ErrCode.SYSCALL)
        ) from wrong


def _finish() -> None:
    """At the end of the process: waits for the thread, and tells the failures that no call has raised."""
    if _writer is None:
        return
    _writer.shutdown()
    for name, wrong in _failed:
        print(f"save_async: the save to {name} failed: {wrong!r}", file=sys.stderr, flush=True)
    _failed.clear()


def _wait() -> None:
    """Until all saves of now are written, for tests."""
    if _writer is not None:
        _writer.submit(lambda: None).result()
