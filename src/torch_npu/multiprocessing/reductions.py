"""NPU tensors and events by handles that any channel can carry; mirrors upstream's torch_npu.multiprocessing.reductions.

`torch.multiprocessing.reductions.reduce_tensor(tensor)` gives `rebuild_npu_tensor` and its arguments, plain values
that a program may pickle, send and change (the device is the seventh). The bytes move to shared host memory once;
the process that made the handle must live while others open it, as on the card.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import torch

from torch_npu import _multiprocessing

__all__ = ["rebuild_npu_event", "rebuild_npu_tensor"]

_HANDLE = re.compile(rb"([0-9]{1,18}):([0-9]{1,9})")


def rebuild_npu_event(device: Any, handle: bytes) -> Any:
    """The event that `Event.ipc_handle` described."""
    return torch.npu.Event.from_ipc_handle(device, handle)


def rebuild_npu_tensor(
    tensor_cls: Any,
    tensor_size: Any,
    tensor_stride: Any,
    tensor_offset: int,
    storage_cls: Any,
    dtype: torch.dtype,
    storage_device: Any,
    storage_handle: bytes | None,
    storage_size_bytes: int,
    storage_offset_bytes: int,
    requires_grad: bool,
    ref_counter_handle: Any,
    ref_counter_offset: int,
    event_handle: Any,
    event_sync_required: bool,
) -> torch.Tensor:
    """The tensor that `reduce_tensor` described, on the same bytes.

    `storage_cls`, the reference counter and the event are upstream's: storages here count their own holders, and
    work that was launched has run, so nothing is waited for.
    """
    device = torch.device("npu", _index(storage_device))
    if storage_handle is None or storage_size_bytes == 0:
        storage = torch.UntypedStorage(0, device=device)
    else:
        if storage_offset_bytes != 0:
            raise ValueError(
                f"rebuild_npu_tensor: storage_offset_bytes must be 0, received {storage_offset_bytes}"
            )
        host = _open(storage_handle, storage_size_bytes)
        storage = _multiprocessing._rebuild_storage(host, _index(storage_device))
    _check_inside(tensor_size, tensor_stride, tensor_offset, dtype, storage.nbytes())
    tensor = torch.empty(0, dtype=dtype, device=device)
    tensor.set_(storage, tensor_offset, tensor_size, tensor_stride)
    if tensor_cls is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.npu.current_device() if index is None else index


def _check_inside(size: Any, stride: Any, offset: Any, dtype: Any, held: int) -> None:
    """`Tensor.set_` would give a tensor that is larger than its storage new memory, apart from the shared one."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"rebuild_npu_tensor: dtype must be a torch.dtype, received {dtype!r}")
    for name, values in (("tensor_size", size), ("tensor_stride", stride)):
        if not isinstance(values, (tuple, list)) or not all(map(_is_count, values)):
            raise ValueError(
                f"rebuild_npu_tensor: {name} must be numbers from 0 on, received {values!r}"
            )
    if len(size) != len(stride):
        raise ValueError(
            f"rebuild_npu_tensor: tensor_stride must have the {len(size)} numbers of tensor_size, received {stride!r}"
        )
    if not _is_count(offset):
        raise ValueError(
            f"rebuild_npu_tensor: tensor_offset must be a number from 0 on, received {offset!r}"
        )
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    needed = 0 if 0 in size else (last + 1) * dtype.itemsize
    if needed > held:
        raise ValueError(
            f"rebuild_npu_tensor: tensor_size {tuple(size)}, tensor_stride {tuple(stride)} and tensor_offset {offset} "
            f"of {dtype} need {needed} bytes, but the storage has {held}"
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


#: what shm_open makes for PyTorch's shared storages; the file itself is unlinked at once
_SHARED = "/dev/shm/torch_"


def _open(handle: bytes, size: int) -> torch.UntypedStorage:
    """The shared memory under a handle: process and file descriptor, as `_npu_reduce_tensor` wrote them."""
    found = _HANDLE.fullmatch(handle) if isinstance(handle, bytes) else None
    if found is None:
        raise ValueError(f"rebuild_npu_tensor: {handle!r} is no handle of a shared npu storage")
    if not _is_count(size):
        raise ValueError(
            f"rebuild_npu_tensor: storage_size_bytes must be a number from 0 on, received {size!r}"
        )
    path = f"/proc/{int(found[1])}/fd/{int(found[2])}"
    try:
        # A changed number may stand for any file that the process has open: none of them may be written to.
        if not os.readlink(path).startswith(_SHARED):
            raise ValueError(
                f"rebuild_npu_tensor: {handle!r} is no handle of a shared npu storage, but another file of its process"
            )
        fd = os.open(path, os.O_RDWR)
    except OSError as error:
        raise RuntimeError(
            f"rebuild_npu_tensor: the memory of handle {handle!r} cannot be opened ({error.strerror}); the process "
            "that made the handle must hold the tensor, on this machine and for this user"
        ) from error
    try:
        if os.fstat(fd).st_size < size:
            raise ValueError(
                f"rebuild_npu_tensor: expected {size} bytes, but handle {handle!r} has {os.fstat(fd).st_size}"
            )
        shared: Any = torch.UntypedStorage
        return shared._new_shared_fd_cpu(fd, size)  # dups the descriptor
    finally:
        os.close(fd)


def _npu_reduce_tensor(before: Callable[..., Any]) -> Callable[..., Any]:
    """torch.multiprocessing.reductions.reduce_tensor that knows npu tensors."""

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        if tensor.device.type != "npu" or tensor.layout != torch.strided:
            return before(tensor)
        _multiprocessing.refuse_non_leaf(tensor)
        storage = tensor.untyped_storage()
        handle = None
        if storage.nbytes():
            fd, _ = _multiprocessing._host_storage(storage)._share_fd_cpu_()
            handle = f"{os.getpid()}:{fd}".encode()
        return rebuild_npu_tensor, (
            type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset(),
            torch.storage.TypedStorage, tensor.dtype, tensor.device.index, handle, storage.nbytes(), 0,
            tensor.requires_grad, None, 0, None, False,
        )  # fmt: skip

    return reduce_tensor
