"""Sharing NPU tensors between processes: the bytes move to shared host memory once, both sides then see them."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing import reductions

from softnpu import _C

_reduce_other = reductions.reduce_tensor  # before _patch replaces it

#: data pointer of a storage that is shared already -> its host storage, which the NPU storage alone keeps alive
_shared: dict[int, reductions.StorageWeakRef] = {}


def _host_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The shared host storage under an NPU storage; moves the bytes there at the first call."""
    forget_freed()
    known = _shared.get(storage.data_ptr())
    if known is not None:
        return torch.UntypedStorage._new_with_weak_ptr(known.cdata)
    host = torch.UntypedStorage._new_shared(storage.nbytes(), device="cpu")
    _C.rebase_storage(storage, host)
    _remember(storage, host)
    return host


def _remember(storage: torch.UntypedStorage, host: torch.UntypedStorage) -> None:
    if storage.nbytes() > 0:
        _shared[storage.data_ptr()] = reductions.StorageWeakRef(host)


def forget_freed() -> None:
    """Drops what is known of storages that nobody holds any more."""
    for address in [address for address, host in _shared.items() if host.expired()]:
        del _shared[address]


def _on_npu(value: Any) -> bool:
    return value.device.type == "npu"


def refuse_non_leaf(tensor: torch.Tensor) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries. Call detach() before sending it."
        )


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if not _on_npu(tensor) or tensor.layout != torch.strided:
        return _reduce_other(tensor)
    refuse_non_leaf(tensor)
    host = _host_storage(tensor.untyped_storage())
    geometry = (tensor.size(), tensor.stride(), tensor.storage_offset())
    kind = type(tensor)
    return _rebuild_tensor, (
        kind, host, tensor.device.index, tensor.dtype, geometry, tensor.requires_grad,
    )  # fmt: skip


def _reduce_storage(storage: Any) -> Any:
    typed = isinstance(storage, torch.storage.TypedStorage)
    untyped = storage._untyped_storage if typed else storage
    if not _on_npu(untyped):
        reduce = reductions.reduce_typed_storage if typed else reductions.reduce_storage
        return reduce(storage)
    parts = (_host_storage(untyped), untyped.device.index)
    return (_rebuild_typed_storage, (*parts, storage.dtype)) if typed else (_rebuild_storage, parts)


def _rebuild_storage(host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    storage = torch.UntypedStorage(host.nbytes(), device=f"npu:{index}")
    _C.adopt_host_storage(storage, host)
    _remember(storage, host)
    return storage


def _rebuild_typed_storage(
    host: torch.UntypedStorage, index: int, dtype: torch.dtype
) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(
        wrap_storage=_rebuild_storage(host, index), dtype=dtype, _internal=True
    )


def _rebuild_tensor(
    kind: type,
    host: torch.UntypedStorage,
    index: int,
    dtype: torch.dtype,
    geometry: Any,
    grad: bool,
) -> torch.Tensor:
    size, stride, offset = geometry
    tensor = torch.empty(0, dtype=dtype, device=f"npu:{index}")
    tensor.set_(_rebuild_storage(host, index), offset, size, stride)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return tensor.requires_grad_(grad)


#: type -> how the pickler of `torch.multiprocessing` takes it apart
REDUCERS = {
    torch.Tensor: _reduce_tensor,
    torch.nn.Parameter: _reduce_tensor,
    torch.UntypedStorage: _reduce_storage,
    torch.storage.TypedStorage: _reduce_storage,
}
