"""The group behind a communication name (`hcom`, `group_ep`), as kernels see it: collectives on plain tensors.

A name comes from `get_hccl_comm_name(rank)` of a group's backend. Besides, `softnpu%mirror_N` is a group of N ranks in
this process alone, whose other ranks do at all times what this one, rank 0, does: with it an operator runs, traces and
can be looked at without a second process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    ReduceScatterOptions,
)

from softnpu import _C
from torch_npu._errors import ErrCode
from torch_npu.distributed import _windows
from torch_npu.ops import _check as must

_MIRROR = re.compile(r"softnpu%mirror_(\d+)$")
_LONGEST_NAME = 127
_TAG = 7927  # of the signs by which ranks wait for each other


class Group(Protocol):
    """What kernels ask of a group."""

    rank: int
    size: int

    def all_gather(self, x: torch.Tensor) -> torch.Tensor: ...

    def all_to_all(
        self, x: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor: ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor: ...

    def wait_for(self, ranks: Sequence[int]) -> None: ...

    def window(self, rank: int, size: int) -> torch.Tensor: ...


class _Hccl:
    """A process group, by its backend."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.rank, self.size = backend.rank(), backend.size()

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, one below the other."""
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        self._backend._allgather_base(out, x.contiguous(), AllgatherOptions()).wait()
        return out

    def all_to_all(
        self, x: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        """Sends `send[r]` rows to rank r and returns the `receive[r]` rows that came from each."""
        out = x.new_empty((sum(receive), *x.shape[1:]))
        work = self._backend.alltoall_base(
            out, x.contiguous(), list(receive), list(send), AllToAllOptions()
        )
        work.wait()
        return out

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""
        if x.dtype == torch.float64:  # HCCL does not reduce it
            return self.all_gather(x.unsqueeze(0)).sum(0)
        out = x.clone(memory_format=torch.contiguous_format)
        self._backend.allreduce([out], AllreduceOptions()).wait()
        return out

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the rows of the sum."""
        rows = x.shape[0] // self.size
        if x.dtype == torch.float64:
            return self.all_reduce(x)[self.rank * rows : (self.rank + 1) * rows]
        out = x.new_empty((rows, *x.shape[1:]))
        self._backend._reduce_scatter_base(out, x.contiguous(), ReduceScatterOptions()).wait()
        return out

    def wait_for(self, ranks: Sequence[int]) -> None:
        """Waits until each of these ranks, this one among them, has come here; the others of the group need not."""
        sign, others = torch.zeros(1), [rank for rank in ranks if rank != self.rank]
        first = ranks[0]
        if self.rank != first:
            self._backend.send([sign], first, _TAG).wait()
            self._backend.recv([sign], first, _TAG).wait()
            return
        for rank in others:
            self._backend.recv([sign], rank, _TAG).wait()
        for rank in others:
            self._backend.send([sign], rank, _TAG).wait()

    def window(self, rank: int, size: int) -> torch.Tensor:
        """The first `size` bytes of a rank's window, as int8."""
        return _windows.window_bytes(self._backend, rank, size)


class _Mirror:
    """A group whose other ranks mirror this one."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(self.size, *[1] * (x.dim() - 1))

    def all_to_all(
        self, x: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> torch.Tensor:
        mine = x[: send[0]]
        if any(count != send[0] for count in receive):
            raise RuntimeError(f"a mirrored rank sends {send[0]} rows, not {list(receive)}")
        return mine.repeat(self.size, *[1] * (x.dim() - 1))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.size

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // self.size] * self.size

    def wait_for(self, ranks: Sequence[int]) -> None:
        pass

    def window(self, rank: int, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int8)


def find(name: str) -> Group:
    """The group of the name, which `check` has seen."""
    mirror = _MIRROR.match(name)
    return _Mirror(int(mirror[1])) if mirror else _Hccl(_C.hccl.find(name))


def check_name(argument: str, name: str, size_argument: str, size: int | None = None) -> None:
    """The name is that of a group, which has the given number of ranks."""
    length = 1 <= len(name) <= _LONGEST_NAME
    must.hold(length, argument, f"a name of 1 to {_LONGEST_NAME} characters", repr(name))
    if mirror := _MIRROR.match(name):
        ranks = int(mirror[1])
    else:
        backend: Any = _C.hccl.find(name)
        expected = "the name of a group, as get_hccl_comm_name of its hccl backend gives it"
        must.hold(backend is not None, argument, expected, repr(name), ErrCode.NOT_FOUND)
        ranks = backend.size()
    if size is not None:
        must.hold(size == ranks, size_argument, f"the number of ranks of the group ({ranks})", size)
