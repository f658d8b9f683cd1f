"""The schedule context of attention and FFN workers that run apart (AFD): 1024 bytes on the device, with addresses.

Its layout is that of CANN's ScheduleContext (ops-transformer, attention/attention_worker_combine/op_kernel). An address
that a program wrote into it is followed only where it is memory of a device of this process or of a window.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
from collections.abc import Callable, Sequence

import torch

from softnpu import _C
from torch_npu._errors import ErrCode, ops_error
from torch_npu.distributed import _windows
from torch_npu.ops import _check as must

SIZE = 1024
FFN, ATTENTION = 0, 1  # schedule_mode
RUNNING, STOPPED = 1, 0  # run_flag
READY = 1  # flag of a worker's table

#: where a field is, and its form
FIELDS = {
    "session_num": (0, "I"),
    "micro_batch_num": (4, "I"),
    "micro_batch_size": (8, "I"),
    "selected_expert_num": (12, "I"),
    "expert_num": (16, "I"),
    "attn_to_ffn_token_size": (20, "I"),
    "ffn_to_attn_token_size": (24, "I"),
    "schedule_mode": (28, "i"),
    "run_flag": (128, "i"),
    "attention.token_info_buf": (256, "Q"),
    "attention.token_info_buf_size": (264, "Q"),
    "attention.token_data_buf": (272, "Q"),
    "attention.token_data_buf_size": (280, "Q"),
    "attention.micro_batch_id": (288, "I"),
    "ffn.token_info_buf": (384, "Q"),
    "ffn.token_info_buf_size": (392, "Q"),
    "ffn.token_data_buf": (400, "Q"),
    "ffn.token_data_buf_size": (408, "Q"),
    "ffn.polling_index": (416, "Q"),
    "ffn.layer_ids_buf": (512, "Q"),
    "ffn.layer_ids_buf_size": (520, "Q"),
    "ffn.session_ids_buf": (528, "Q"),
    "ffn.session_ids_buf_size": (536, "Q"),
    "ffn.micro_batch_ids_buf": (544, "Q"),
    "ffn.micro_batch_ids_buf_size": (552, "Q"),
    "ffn.expert_ids_buf": (560, "Q"),
    "ffn.expert_ids_buf_size": (568, "Q"),
    "ffn.out_num": (576, "I"),
}

_PATIENCE = 120.0  # seconds until flags that nobody sets are an error


class Context:
    """The fields of a context tensor, read and written in its own memory, for one call of an operator."""

    def __init__(self, operator: str, argument: str, tensor: torch.Tensor) -> None:
        self._operator, self._argument = operator, argument
        self._bytes = memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type]

    def __getitem__(self, name: str) -> int:
        at, form = FIELDS[name]
        value: int = struct.unpack_from(form, self._bytes, at)[0]
        return value

    def __setitem__(self, name: str, value: int) -> None:
        at, form = FIELDS[name]
        struct.pack_into(form, self._bytes, at, value)

    def require(self, holds: bool, name: str, expected: str) -> None:
        """A field has a value that the operator can work with."""
        if not holds:
            raise RuntimeError(
                f"{self._operator}: argument '{self._argument}' must have {name} {expected}, but received "
                f"{self[name]}" + ops_error(ErrCode.VALUE)
            )

    def positive(self, *names: str) -> None:
        for name in names:
            self.require(self[name] > 0, name, "greater than 0")

    def memory(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, offset: int = 0
    ) -> torch.Tensor:
        """The tensor at an address of the context, `offset` bytes behind it."""
        size = math.prod(shape) * dtype.itemsize
        address = self[name] + offset
        held = size == 0 or belongs_to_device(address, size)
        self.require(held, name, f"the address of device memory of at least {offset + size} bytes")
        if size == 0:
            return torch.empty(*shape, dtype=dtype)
        buffer = (ctypes.c_char * size).from_address(address)
        return torch.frombuffer(buffer, dtype=dtype).view(*shape)

    def copy(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, offset: int = 0
    ) -> torch.Tensor:
        """What is at an address, in memory of the host's own.

        A program may have given the memory back in the meantime, and then temporaries of the kernel would take it.
        """
        there = self.memory(name, shape, dtype, offset).reshape(-1).view(torch.uint8)
        return torch.from_numpy(there.numpy().copy()).view(dtype).view(*shape)

    def wait(self, ready: Callable[[], bool], what: str, stoppable: bool = True) -> bool:
        """Until `ready()` holds, or run_flag is 0 (then False)."""
        until = time.monotonic() + _PATIENCE
        while not (stoppable and self["run_flag"] == STOPPED):
            if ready():
                return True
            if time.monotonic() > until:
                raise RuntimeError(
                    f"{self._operator}: {what} did not arrive within {_PATIENCE:.0f} seconds"
                    + ops_error(ErrCode.TIMEOUT)
                )
            time.sleep(1e-4)
        return False


def belongs_to_device(address: int, size: int) -> bool:
    """Whether these bytes lie in a segment of a device, or in a window."""
    for index in range(_C.device_count()):
        for segment in _C.memory_segments(index):
            first = segment["address"]
            if first <= address and address + size <= first + segment["total_size"]:
                return True
    return _windows.holds(address, size)


def check(name: str, context: torch.Tensor) -> None:
    """What every operator asks of a context tensor."""
    must.dtype(name, context, torch.int8)
    must.ndim(name, context, 1)
    must.hold(context.shape[0] >= SIZE, name, f"of at least {SIZE} bytes", context.shape[0])
    must.hold(context.is_contiguous(), name, "contiguous", f"strides {context.stride()}")
