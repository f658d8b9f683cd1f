"""torchair.llm_datadist: tensors on addresses that another component has allocated."""

from __future__ import annotations

import torch

from softnpu import _C
from torch_npu.distributed import _windows

__all__ = ["create_npu_tensors"]

_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


def create_npu_tensors(
    shape: list[int], dtype: torch.dtype, addresses: list[int]
) -> list[torch.Tensor]:
    """One contiguous tensor of this shape and dtype on each device address, without owning its memory.

    Args:
        shape: of every tensor.
        dtype: of every tensor.
        addresses: of allocated memory of an npu device, or of a window that ranks have exchanged, each with room for a
            tensor.

    Differs from upstream: an address that is not inside allocated device memory raises ValueError; the card
    would accept it and fail when the tensor is used.
    """
    for name, values in (("shape", shape), ("addresses", addresses)):
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"{name}: expected a list of int, received {type(values).__name__}")
        for value in values:
            if not isinstance(value, int):
                raise TypeError(f"{name}: expected int, received {type(value).__name__} {value!r}")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: expected a torch.dtype, received {type(dtype).__name__}")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype: expected one of {list(_DTYPES)}, received {dtype}")
    count = 1
    for size in shape:
        count *= size
    return [_at(address, shape, dtype, count * dtype.itemsize) for address in addresses]


def _at(address: int, shape: list[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    device = _device_of(address, nbytes)
    host = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), nbytes)
    storage = torch.UntypedStorage(nbytes, device=f"npu:{device}")
    _C.adopt_host_storage(storage, host)
    return torch.empty(0, dtype=dtype, device=f"npu:{device}").set_(storage).view(shape)


def _device_of(address: int, nbytes: int) -> int:
    for index in range(_C.device_count()):
        for segment in _C.memory_segments(index):
            start = segment["address"]
            if start <= address and address + nbytes <= start + segment["total_size"]:
                return index
    if _windows.holds(address, nbytes):
        return torch.npu.current_device()
    raise ValueError(
        f"addresses: expected {nbytes} bytes of allocated device memory, received {address:#x}"
    )
