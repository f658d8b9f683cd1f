"""The npu device as dynamo and Inductor see devices."""

from __future__ import annotations

from typing import Any

import torch

from softnpu import _C


def npu_interface(base: type) -> Any:
    """The subclass of torch._dynamo.device_interface.DeviceInterface for npu."""

    class Worker:
        """What processes that compile ask for."""

        set_device = staticmethod(torch.npu.set_device)
        current_device = staticmethod(torch.npu.current_device)

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return torch.npu.get_device_properties(_index(device))

    class NpuInterface(base):  # type: ignore[misc, valid-type]
        """Every call goes to torch.npu."""

        device = torch.npu.device
        Event = torch.npu.Event
        Stream = torch.npu.Stream

        current_device = staticmethod(torch.npu.current_device)
        set_device = staticmethod(torch.npu.set_device)
        device_count = staticmethod(torch.npu.device_count)
        is_available = staticmethod(torch.npu.is_available)
        stream = staticmethod(torch.npu.stream)
        current_stream = staticmethod(torch.npu.current_stream)
        set_stream = staticmethod(torch.npu.set_stream)
        synchronize = staticmethod(torch.npu.synchronize)
        memory_allocated = staticmethod(torch.npu.memory_allocated)
        exchange_device = staticmethod(_C.exchange_device)
        maybe_exchange_device = staticmethod(_C.exchange_device)

        @staticmethod
        def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
            torch.npu.set_stream(
                torch.npu.Stream(
                    stream_id=stream_id, device_index=device_index, device_type=device_type
                )
            )

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return torch.npu.current_stream(device_idx).npu_stream

        @classmethod
        def get_device_properties(cls, device: Any = None) -> Any:
            return torch.npu.get_device_properties(_index(device))

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            return torch.npu.get_device_name(_index(device))

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return torch.npu.is_bf16_supported()

    NpuInterface.Worker = Worker
    return NpuInterface


def _index(device: Any) -> int:
    if device is None:
        return torch.npu.current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.npu.current_device() if index is None else index
