"""Sleep mode of vllm-ascend: a pool whose memory can be given back and mapped again at the same addresses.

The program names the allocator's functions by a shared library, `vllm_ascend_C*.so`, that it finds among those of the
process. A small one is compiled on first use; its functions call those of this module. Without a C compiler the names
cannot be imported, and vllm-ascend says that sleep mode is off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softnpu import ownership

__all__ = ["init_module", "load", "python_create_and_map", "python_unmap_and_release"]

Handle = tuple[int, int, int, int]  # device, bytes, address, address of the card's handle

_SOURCE = """
#include <stddef.h>
#include <sys/types.h>
static void* (*allocate)(ssize_t, int, void*);
static void (*release)(void*, ssize_t, int, void*);
void set_callbacks(void* first, void* second) { allocate = first; release = second; }
void* my_malloc(ssize_t size, int device, void* stream) { return allocate(size, device, stream); }
void my_free(void* address, ssize_t size, int device, void* stream) { release(address, size, device, stream); }
"""
_LIBRARY = "vllm_ascend_C.so"
_GRANULARITY = 2 << 20  # pages of the card's physical memory
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_NORESERVE, _MADV_DONTNEED = 3, 0x4022, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_kept: dict[str, Any] = {}  # the library and its callbacks


def load() -> Path:
    """The library, loaded into the process; ImportError if it cannot be compiled."""
    path = _folder() / _LIBRARY
    if not path.exists():
        _compile(path)
    _kept["library"] = ctypes.CDLL(str(path))
    return path


def _folder() -> Path:
    version = hashlib.sha256(_SOURCE.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "softnpu" / version
    try:
        ownership.make_private(folder)
        ownership.check_path(folder / _LIBRARY)
    except OSError:  # it cannot be written, or others could have put the library there
        return ownership.private_folder("softnpu-vllm-")
    return folder


def _compile(path: Path) -> None:
    """Into a file of its own first: several processes may start at once."""
    compiler = os.environ.get("CC", "cc")
    handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", name]
    try:
        done = subprocess.run(command, input=_SOURCE, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        raise ImportError(f"sleep mode needs a C compiler, {compiler!r} was not found") from None
    if done.returncode != 0:
        raise ImportError(f"sleep mode: {compiler!r} failed: {done.stderr}")
    os.replace(name, path)


def init_module(
    python_malloc: Callable[[Handle], None], python_free: Callable[[int], Handle]
) -> None:
    """Names who is told of each allocation and who gives its handle back when it is freed."""
    for label, given in (("python_malloc", python_malloc), ("python_free", python_free)):
        if not callable(given):
            raise TypeError(f"init_module: {label} must be callable, received {given!r}")
    library = _kept["library"]

    def allocate(size: int, device: int, stream: int | None) -> int:
        size = -(-size // _GRANULARITY) * _GRANULARITY
        address = _libc.mmap(None, size, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no address space for {size} bytes")
        python_malloc((device, size, address, address))
        return address

    unmap = _libc.munmap  # tensors that outlive this module's names are freed, too

    def release(address: int, size: int, device: int, stream: int | None) -> None:
        _, size, address, _ = python_free(address)
        unmap(address, size)

    callbacks = _ALLOCATE(allocate), _RELEASE(release)
    library.set_callbacks(*(ctypes.cast(one, ctypes.c_void_p) for one in callbacks))
    _kept.setdefault("callbacks", []).append(callbacks)  # memory of earlier pools still names them


def python_unmap_and_release(device: int, size: int, address: int, handle: int) -> None:
    """Gives the memory back; what was in it is lost. Reading it gives zeros here, an error on the card."""
    if _libc.madvise(address, size, _MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), f"unmapping {size} bytes at {address:#x} failed")


def python_create_and_map(device: int, size: int, address: int, handle: int) -> None:
    """Memory at the same address again: pages come when they are touched, zeroed."""
