"""Windows: device memory of one rank that the other ranks of its group write without asking.

`_window_register_and_exchange` of a group's hccl backend makes this rank's window and exchanges it with the given ranks,
which do the same; operators that send by themselves (npu_attention_to_ffn, npu_ffn_to_attention) then write into them.
The window lies in shared host memory: its ranks are processes of one machine and one user.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from torch_npu import _multiprocessing
from torch_npu._errors import ErrCode, dist_error

_HANDLE = 256  # bytes of a message that describes a window
_TAG = 7919
#: the windows of this process's own ranks, while someone holds them
_held: list[weakref.ref[torch.Tensor]] = []


def install(backend: Any) -> None:
    """Gives the class of the hccl backend upstream's two methods."""
    backend._window_register_and_exchange = _register_and_exchange
    backend._get_window_mem = _own


def _register_and_exchange(self: Any, window_size: int, peer_ranks: Sequence[int]) -> None:
    """Makes a window of so many bytes, zero at first, and exchanges it with ranks that call this too."""
    if window_size <= 0:
        raise RuntimeError("Window memory must be greater than 0." + dist_error(ErrCode.PARAM))
    if self._windows:
        raise RuntimeError(
            "Window memory cannot be registered repeatedly." + dist_error(ErrCode.UNAVAIL)
        )
    for rank in peer_ranks:
        if not 0 <= rank < self.size() or rank == self.rank():
            raise RuntimeError(
                f"_window_register_and_exchange: peer ranks must be other ranks of the group of {self.size()}, "
                f"but received {rank}." + dist_error(ErrCode.PARAM)
            )
    own = torch.zeros(window_size, dtype=torch.int8, device="npu")
    descriptor, _ = _multiprocessing._host_storage(own.untyped_storage())._share_fd_cpu_()
    windows = {self.rank(): own}
    mine = _message(f"{socket.gethostname()}|{os.getpid()}:{descriptor}|{window_size}")
    theirs = _exchange(self, mine, peer_ranks)
    for rank, message in theirs.items():
        windows[rank] = _open(rank, bytes(message.cpu().tolist()).rstrip(b"\0").decode())
    _exchange(
        self, mine, peer_ranks
    )  # nobody goes on, and ends, before the others have opened its window
    self._windows = windows
    _held[:] = [held for held in _held if held() is not None] + [weakref.ref(own)]


def _exchange(
    backend: Any, mine: torch.Tensor, peer_ranks: Sequence[int]
) -> dict[int, torch.Tensor]:
    """What each of the ranks sends, in exchange for `mine`."""
    theirs = {rank: torch.zeros_like(mine) for rank in peer_ranks}
    works = [backend.send([mine], rank, _TAG) for rank in peer_ranks]
    works += [backend.recv([message], rank, _TAG) for rank, message in theirs.items()]
    for work in works:
        work.wait()
    return theirs


def _message(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode().ljust(_HANDLE, b"\0")), dtype=torch.uint8).npu()


def _open(rank: int, text: str) -> torch.Tensor:
    """The bytes of another rank's window, as host memory."""
    from torch_npu.multiprocessing import reductions

    host, handle, size = text.split("|")
    if host != socket.gethostname():
        raise RuntimeError(
            f"_window_register_and_exchange: the window of rank {rank} is on the machine {host}; windows are shared "
            f"within one machine ({socket.gethostname()})." + dist_error(ErrCode.NOT_SUPPORT)
        )
    storage = reductions._open(handle.encode(), int(size))
    return torch.empty(0, dtype=torch.int8).set_(storage)


def _own(self: Any) -> torch.Tensor:
    """This rank's window, int8 on the device."""
    if not self._windows:
        raise RuntimeError(
            "window memory must be registered before get." + dist_error(ErrCode.UNAVAIL)
        )
    return self._windows[self.rank()]


def holds(address: int, size: int) -> bool:
    """Whether these bytes lie in a window of this process."""
    for held in _held:
        window = held()
        if window is not None:
            first = window.data_ptr()
            if first <= address and address + size <= first + window.numel():
                return True
    return False


def window_bytes(backend: Any, rank: int, size: int) -> torch.Tensor:
    """The first `size` bytes of a rank's window as a host tensor, for kernels."""
    found = backend._windows.get(rank)
    if found is None:
        raise RuntimeError(
            f"rank {backend.rank()} has no window of rank {rank}: _window_register_and_exchange of the group's "
            "backend exchanges windows." + dist_error(ErrCode.UNAVAIL)
        )
    if found.numel() < size:
        raise RuntimeError(
            f"the window of rank {rank} has {found.numel()} bytes, but the tables need {size}."
            + dist_error(ErrCode.PARAM)
        )
    if found.device.type == "npu":
        storage = _multiprocessing._host_storage(found.untyped_storage())
        found = torch.empty(0, dtype=torch.int8).set_(storage)
    return found[:size]
