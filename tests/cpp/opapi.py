"""libopapi.so as a C program calls it: tensors made from addresses, then both steps of an aclnn function."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int64, c_uint64, c_void_p

import torch

import torch_npu  # noqa: F401  (loads the library)

DTYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.int8: 2,
    torch.int32: 3,
    torch.int64: 9,
    torch.bool: 12,
    torch.bfloat16: 27,
}

library = ctypes.CDLL("libopapi.so")
for _name in ("Tensor", "TensorList", "Scalar", "IntArray", "FloatArray", "BoolArray"):
    getattr(library, f"aclCreate{_name}").restype = c_void_p
library.aclGetRecentErrMsg.restype = ctypes.c_char_p


class Error(Exception):
    """A code that is not 0, with the library's message."""

    def __init__(self, code: int) -> None:
        super().__init__(library.aclGetRecentErrMsg().decode())
        self.code = code


def tensor(x: torch.Tensor | None) -> c_void_p:
    """An aclTensor on the storage of x."""
    if x is None:
        return c_void_p(None)
    rank = x.dim()
    numbers = c_int64 * max(rank, 1)
    base = c_void_p(x.untyped_storage().data_ptr())
    sizes = numbers(*x.shape)
    made = library.aclCreateTensor(
        sizes, c_uint64(rank), DTYPES[x.dtype], numbers(*x.stride()), c_int64(x.storage_offset()), 2, sizes,
        c_uint64(rank), base,
    )  # fmt: skip
    return c_void_p(made)


def tensors(*members: torch.Tensor) -> c_void_p:
    handles = (c_void_p * max(len(members), 1))(*(tensor(member).value for member in members))
    return c_void_p(library.aclCreateTensorList(handles, c_uint64(len(members))))


def scalar(value: float) -> c_void_p:
    return c_void_p(library.aclCreateScalar(ctypes.byref(c_double(value)), 11))


def ints(*numbers: int) -> c_void_p:
    return c_void_p(
        library.aclCreateIntArray((c_int64 * len(numbers))(*numbers), c_uint64(len(numbers)))
    )


def call(name: str, *arguments: object) -> None:
    """aclnnXxxGetWorkspaceSize and aclnnXxx on the current stream."""
    size, executor = c_uint64(7), c_void_p()
    first = getattr(library, f"{name}GetWorkspaceSize")
    code = first(*map(_c, arguments), ctypes.byref(size), ctypes.byref(executor))
    if code:
        raise Error(code)
    assert size.value == 0
    stream = c_void_p(torch.npu.current_stream().npu_stream)
    code = getattr(library, name)(c_void_p(None), size, executor, stream)
    if code:
        raise Error(code)


def _c(value: object) -> object:
    if isinstance(value, torch.Tensor) or value is None:
        return tensor(value)
    if isinstance(value, bool):
        return ctypes.c_bool(value)
    if isinstance(value, int):
        return c_int64(value)
    if isinstance(value, float):
        return c_double(value)
    if isinstance(value, str):
        return ctypes.c_char_p(value.encode())
    return value


def single(value: float) -> c_float:
    """An argument that CANN declares as float, not double."""
    return c_float(value)
