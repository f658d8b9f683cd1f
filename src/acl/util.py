"""acl.util: between Python's buffers and addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from acl import _addresses, _codes
from acl._callbacks import start_thread, stop_thread

__all__ = [
    "bytes_to_ptr",
    "numpy_contiguous_to_ptr",
    "numpy_to_ptr",
    "ptr_to_bytes",
    "ptr_to_numpy",
    "start_thread",
    "stop_thread",
]

#: numpy's numbers of types (NPY_TYPES) that pyACL's functions take
_TYPES = {
    0: "bool", 1: "int8", 2: "uint8", 3: "int16", 4: "uint16", 5: "int32", 6: "uint32", 7: "int64", 8: "uint64",
    9: "int64", 10: "uint64", 11: "float32", 12: "float64", 14: "complex64", 15: "complex128", 23: "float16",
}  # fmt: skip


def bytes_to_ptr(data: bytes) -> int:
    """The address of a bytes object, which the caller must keep."""
    if not isinstance(data, bytes):
        raise TypeError(
            f"acl.util.bytes_to_ptr: data must be bytes, received {type(data).__name__}"
        )
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def ptr_to_bytes(ptr: int, size: int) -> bytes:
    """A copy of the bytes at an address."""
    _codes.integers("acl.util.ptr_to_bytes", ptr=ptr, size=size)
    _readable("ptr_to_bytes", ptr, size)
    return ctypes.string_at(ptr, size)


def numpy_to_ptr(array: Any) -> int:
    """The address of a numpy array's data, which the caller must keep."""
    import numpy

    if not isinstance(array, numpy.ndarray):
        raise TypeError(
            f"acl.util.numpy_to_ptr: array must be a numpy array, received {type(array).__name__}"
        )
    return array.ctypes.data


def numpy_contiguous_to_ptr(array: Any) -> int:
    """`numpy_to_ptr` of an array that must be contiguous."""
    address = numpy_to_ptr(array)
    if not array.flags.c_contiguous:
        raise ValueError("acl.util.numpy_contiguous_to_ptr: the array must be contiguous")
    return address


def ptr_to_numpy(ptr: int, dims: Sequence[int], data_type: int) -> Any:
    """A numpy array on the bytes at an address; `data_type` is numpy's number (NPY_FLOAT32 is 11)."""
    import numpy

    _codes.integers("acl.util.ptr_to_numpy", ptr=ptr, data_type=data_type)
    if data_type not in _TYPES:
        raise ValueError(
            f"acl.util.ptr_to_numpy: data_type must be one of {sorted(_TYPES)}, received {data_type}"
        )
    kind = numpy.dtype(_TYPES[data_type])
    shape = tuple(dims)
    _codes.integers("acl.util.ptr_to_numpy", **{f"dims[{i}]": d for i, d in enumerate(shape)})
    size = kind.itemsize
    for one in shape:
        size *= one
    _readable("ptr_to_numpy", ptr, size)
    buffer: Any = (ctypes.c_char * size).from_address(ptr)
    return numpy.frombuffer(buffer, dtype=kind).reshape(shape)


def _readable(call: str, ptr: int, size: int) -> None:
    if not _addresses.mapped(ptr, size, write=False):
        raise ValueError(
            f"acl.util.{call}: expected the address of {size} bytes of this process, received {ptr:#x}"
        )
