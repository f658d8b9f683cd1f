"""torch.npu.FloatStorage, torch.npu.FloatTensor and their kin: the old way to name a dtype on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.storage import _LegacyStorage, _warn_typed_storage_removal

from torch_npu._errors import ErrCode, pta_error

DTYPES = {
    "Byte": torch.uint8,
    "Double": torch.double,
    "Float": torch.float,
    "Half": torch.half,
    "Long": torch.long,
    "Int": torch.int,
    "Short": torch.short,
    "Char": torch.int8,
    "Bool": torch.bool,
    "BFloat16": torch.bfloat16,
}


class _Property:
    """A property of the class itself."""

    def __init__(self, read: Any) -> None:
        self.read = read

    def __get__(self, _: Any, owner: Any) -> Any:
        return self.read(owner)


def _warned_dtype(owner: Any) -> torch.dtype:
    _warn_typed_storage_removal()
    return owner._dtype


class _NPULegacyStorage(_LegacyStorage):
    """A typed storage on the npu."""

    dtype = _Property(_warned_dtype)  # type: ignore[assignment]

    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "from_buffer: Not available for NPU storage" + pta_error(ErrCode.UNAVAIL)
        )

    @classmethod
    def _new_with_weak_ptr(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "_new_with_weak_ptr: Not available for NPU storage" + pta_error(ErrCode.UNAVAIL)
        )

    @classmethod
    def _new_shared_filename(cls, manager: Any, obj: Any, size: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "_new_shared_filename: Not available for NPU storage" + pta_error(ErrCode.UNAVAIL)
        )


def storages() -> dict[str, type]:
    """The storage classes by name, known to torch's own checks."""
    made = {}
    for name, dtype in DTYPES.items():
        title = f"{name}Storage"
        body = {"_dtype": dtype, "__module__": "torch_npu.npu", "__doc__": f"A storage of {dtype}."}
        made[title] = type(title, (_NPULegacyStorage,), body)
        torch._storage_classes.add(made[title])
    return made


class _TensorType(type):
    """The type of torch.npu.FloatTensor: calling it makes a tensor, isinstance looks at device and dtype."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        where = torch.device("npu" if device is None else device)
        if where.type != "npu":
            raise RuntimeError(
                f"legacy constructor expects device type: npu but device type: {where.type} was passed"
            )
        if kwargs:
            raise TypeError(f"new() received an unexpected keyword argument {next(iter(kwargs))!r}")
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return cls._from_data(args[0], where)
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(tuple(sizes) or (0,), dtype=cls.dtype, device=where)

    def _from_data(cls, data: Any, where: torch.device) -> torch.Tensor:
        if isinstance(data, (torch.storage.TypedStorage, torch.UntypedStorage)):
            return torch.empty(0, dtype=cls.dtype, device=where).set_(data)  # type: ignore[call-overload]
        if isinstance(data, torch.Tensor):
            if data.dtype != cls.dtype or data.device.type != "npu":
                raise TypeError(f"expected {cls.__name__} (got {data.type()})")
            return data.detach()
        try:
            return torch.tensor(data, dtype=cls.dtype, device=where)
        except TypeError as wrong:
            raise TypeError(
                f"new(): invalid data for {cls.__name__}, expected sizes, numbers in lists, a tensor or "
                f"a storage, but received {type(data).__name__} ({wrong})"
            ) from None

    def __instancecheck__(cls, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == "npu"
            and value.dtype == cls.dtype
            and value.layout == torch.strided
        )

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"


def tensor_types() -> dict[str, type]:
    """The tensor types by name. Their `__name__` is what Tensor.type() returns, so Tensor.type() takes them."""
    made: dict[str, type] = {}
    for name, dtype in DTYPES.items():
        title = f"{name}Tensor"
        body = {
            "dtype": dtype,
            "is_npu": True,
            "is_sparse": False,
            "__module__": "torch_npu.npu",
            "__qualname__": title,
            "__doc__": f"A tensor of {dtype} on the npu.",
        }
        made[title] = _TensorType(f"torch.npu.{title}", (), body)
    return made
