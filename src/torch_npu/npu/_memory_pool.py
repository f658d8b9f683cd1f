"""Private memory pools and users' own allocators."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu._device import is_initialized, memory_index


class _NPUAllocator:
    """An allocator of device memory: the built-in one, or one loaded from a library."""

    def __init__(self, allocator: tuple[int, int] | None) -> None:
        self._allocator = allocator

    def allocator(self) -> tuple[int, int] | None:
        """The addresses of its two functions; None for the built-in one."""
        return self._allocator


class NPUPluggableAllocator(_NPUAllocator):
    """An allocator in a shared library.

    The library exports, with C linkage and under the given names,
    `void* alloc(ssize_t size, int device, aclrtStream stream)` and
    `void free(void* ptr, ssize_t size, int device, aclrtStream stream)`; the memory must be host memory here.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        if not os.path.exists(path_to_so_file):
            raise RuntimeError(
                f"NPUPluggableAllocator: the library {path_to_so_file!r} does not exist"
                + pta_error(ErrCode.NOT_FOUND)
            )
        try:
            self._library = ctypes.CDLL(path_to_so_file)
        except OSError as error:
            raise RuntimeError(
                f"NPUPluggableAllocator: {path_to_so_file!r} is not a shared library that can be "
                f"loaded: {error}" + pta_error(ErrCode.PARAM)
            ) from error
        addresses = (self._function(path_to_so_file, n) for n in (alloc_fn_name, free_fn_name))
        super().__init__(tuple(addresses))  # type: ignore[arg-type]

    def _function(self, path: str, name: str) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise RuntimeError(
                f'NPUPluggableAllocator: {path!r} has no function {name!r} (is it extern "C"?)'
                + pta_error(ErrCode.NOT_FOUND)
            ) from error
        return ctypes.cast(function, ctypes.c_void_p).value or 0


_current = _NPUAllocator(None)


def change_current_allocator(allocator: _NPUAllocator) -> None:
    """Makes an allocator the one of every device; only before the first allocation, as upstream."""
    global _current
    if not isinstance(allocator, _NPUAllocator):
        raise TypeError(
            f"allocator must be an NPUPluggableAllocator, but received {type(allocator).__name__}"
            + pta_error(ErrCode.TYPE)
        )
    if is_initialized() and any(
        _C.memory_stats(i)["allocation"]["all"]["allocated"] for i in range(_C.device_count())
    ):
        raise RuntimeError("Can't swap an already initialized allocator" + pta_error(ErrCode.PTR))
    _C.set_plugin(*(allocator.allocator() or (0, 0)))
    _current = allocator


def _get_current_allocator() -> _NPUAllocator:
    return _current


def get_allocator_backend() -> str:
    """`native`, or `pluggable` once an allocator was loaded from a library."""
    return "native" if _current.allocator() is None else "pluggable"


def plugins_in_use() -> bool:
    """Whether memory of a device may come from a user's allocator now, and so be anywhere."""
    return _current.allocator() is not None or len(_plugged) > 0


def not_with_plugin(what: str) -> None:
    """Raises if a user's allocator is in charge, which keeps no statistics and no cache."""
    if _current.allocator() is not None:
        raise RuntimeError(
            f"NPUPluggableAllocator does not yet support {what}. If you need it, please file an issue."
            + pta_error(ErrCode.NOT_SUPPORT)
        )


_pool_numbers = itertools.count(1)
_plugged: weakref.WeakSet[MemPool] = weakref.WeakSet()  # pools with an allocator of their own


def _release(devices: set[int], pool: tuple[int, int]) -> None:
    for index in devices:
        _C.release_pool(index, pool)


class MemPool:
    """A pool of device memory of its own; tensors made inside `use_mem_pool` come from it.

    With an allocator (`NPUPluggableAllocator.allocator()`), its memory comes from there.
    """

    def __init__(self, allocator: Any = None) -> None:
        if isinstance(allocator, _NPUAllocator):
            allocator = allocator.allocator()
        if allocator is not None and not (isinstance(allocator, tuple) and len(allocator) == 2):
            raise TypeError(
                "allocator must be what NPUPluggableAllocator.allocator() returns, but received "
                f"{type(allocator).__name__}" + pta_error(ErrCode.TYPE)
            )
        self._allocator = allocator
        self._id = (0, next(_pool_numbers))
        self._devices: set[int] = set()
        self._users = 0
        self._finalizer = weakref.finalize(self, _release, self._devices, self._id)
        if allocator is not None:
            _plugged.add(self)

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id, as segments carry it."""
        return self._id

    @property
    def allocator(self) -> Any:
        """The allocator given, or None."""
        return self._allocator

    def use_count(self) -> int:
        """How many hold the pool: this object, and every `use_mem_pool` block now open."""
        return 1 + self._users

    def snapshot(self) -> list[dict[str, Any]]:
        """The pool's segments."""
        from torch_npu.npu._memory_history import pool_snapshot

        return pool_snapshot(self.id)

    def _hold(self, index: int) -> None:
        if index in self._devices:
            return
        _C.retain_pool(index, self._id)
        self._devices.add(index)
        if self._allocator is not None:
            _C.set_pool_plugin(index, self._id, *self._allocator)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """This thread's allocations on a device come from `pool` inside the block."""
    if not isinstance(pool, MemPool):
        raise TypeError(f"pool must be a MemPool, but received {type(pool).__name__}")
    _C.ensure_started()
    index = memory_index(device)
    pool._hold(index)
    _C.begin_pool_in_thread(index, pool.id)
    pool._users += 1
    try:
        yield
    finally:
        pool._users -= 1
        _C.end_pool(index, pool.id)
        _C.release_pool(index, pool.id)
