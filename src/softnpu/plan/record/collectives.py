"""Collectives as tasks: each group has a stream of its own, as HCCL has, and the program waits for the result in some way.

PyTorch's operators of torch.distributed (`c10d::allreduce_`) are seen with their groups and tensors, whoever calls them:
below autograd's key, where the profiler stands.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from softnpu.plan.record.launches import Launches
from softnpu.plan.record.log import Log
from softnpu.plan.record.owners import Owners, address_of
from softnpu.plan.recording import COMMUNICATION
from softnpu.plan.tasks import Task

_NAMES = {
    "send": "send", "recv_": "recv", "recv_any_source_": "recv", "broadcast_": "broadcast",
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "allgather_": "all_gather",
    "_allgather_base_": "all_gather", "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_": "reduce", "gather_": "gather", "scatter_": "scatter", "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all", "barrier": "barrier",
}  # fmt: skip
_FIRST_STREAM = 1000  # beyond those of the program
_MOST_WORKS = 1024  # that nobody has waited for


class Collectives:
    """Sees the collectives on NPU tensors, of all groups."""

    def __init__(self, log: Log, owners: Owners, launches: Launches) -> None:
        self._log, self._owners, self._launches = log, owners, launches
        self._streams: dict[tuple[int, ...], int] = {}
        self._works: dict[Any, tuple[int, tuple[int, int]]] = {}
        self.sizes: dict[tuple[int, ...], int] = {}  # bytes of the buffers of each group in use
        self._library = torch.library.Library("c10d", "IMPL")
        for name in _NAMES:
            overload = getattr(torch.ops.c10d, name).default
            see = functools.partial(self._see, overload, _NAMES[name])
            self._library.impl(name, see, "ADInplaceOrView", with_keyset=True)
        launches.on_collective = self.unseen

    def stop(self) -> None:
        self._library._destroy()

    def _see(self, overload: Any, name: str, keys: Any, *args: Any) -> Any:
        self._launches.flush()
        with self._launches.inside_collective():
            result = overload.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)
        number, place = self._add(overload, name, args)
        boxed = result[-1] if isinstance(result, (tuple, list)) else result
        if len(self._works) > _MOST_WORKS:
            self._works.clear()
        self._works[dist.Work.unbox(boxed)] = (number, place)
        return result

    def waited(self, work: Any) -> None:
        """The program calls `Work.wait`: the stream of the call goes on after the collective."""
        number, place = self._works.pop(work, (None, (0, 0)))
        self._log.wait(place, number)

    def _add(self, overload: Any, name: str, args: Sequence[Any]) -> tuple[int, tuple[int, int]]:
        read, written, group = _parts(overload, args)
        ranks = tuple(dist.get_process_group_ranks(group))
        first = next(iter([*read, *written]), None)
        device = torch.npu.current_device() if first is None else first.device.index  # type: ignore[attr-defined]
        place = (device, torch.npu.current_stream(device).stream_id)  # type: ignore[attr-defined]
        self._owners.mark(COMMUNICATION, written)
        number = self._append(
            name, device, place, ranks, self._launches.specs(read), self._launches.specs(written),
            [address_of(t) for t in read], [address_of(t) for t in written],
        )  # fmt: skip
        self.sizes[ranks] = _buffer_bytes(group) if len(ranks) > 1 else 0
        return number, place

    def unseen(self, record: Any) -> None:
        """A collective of the trace that passed no operator above: the stream that it was called on waits for it."""
        name, _, device, stream, *_ = record
        ranks = tuple(record[9])
        place = (device, stream)
        read, written = (self._launches.specs_of(notes) for notes in record[7:9])
        self._log.wait(place, self._append(name, device, place, ranks, read, written, [], []))
        self.sizes.setdefault(ranks, _buffer_bytes(None) if len(ranks) > 1 else 0)

    def _append(
        self, name: str, device: int, place: tuple[int, int], ranks: tuple[int, ...], inputs: Any, outputs: Any,
        reads: list[int], writes: list[int],
    ) -> int:  # fmt: skip
        stream = self._streams.setdefault(ranks, _FIRST_STREAM + len(self._streams))
        self._log.wait((device, stream), self._log.last_of(place))
        task = Task(
            f"hccl::{name.rpartition('::')[2]}", "collective", device, stream, inputs, outputs,
            ranks=len(ranks), peers=ranks,
        )  # fmt: skip
        return self._log.add(task, filter(None, reads), filter(None, writes))


def _parts(overload: Any, args: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
    """The tensors that are read, those that are written, and the group."""
    read: list[Any] = []
    written: list[Any] = []
    group = None
    for argument, value in zip(overload._schema.arguments, args):
        if argument.name == "process_group":
            group = dist.ProcessGroup.unbox(value)
        elif argument.name.startswith("output"):
            written += _tensors(value)
        elif argument.name.startswith(("input", "tensor")):
            read += _tensors(value)
    if not written and overload._schema.name != "c10d::send":
        written = read
    return read, written, group


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _buffer_bytes(group: Any) -> int:
    """HCCL's buffers of a communicator, one to send and one to receive: HCCL_BUFFSIZE, or the group's own setting.

    CANN's page of HCCL_BUFFSIZE: in MB, 200 by default, twice for each communicator.
    """
    import os

    size = os.environ.get("HCCL_BUFFSIZE", "")
    megabytes = int(size) if size.isdecimal() else 200
    if group is not None:
        options = getattr(group._get_backend(torch.device("npu")), "options", None)
        config = getattr(options, "hccl_config", None) or {}
        megabytes = int(config.get("hccl_buffer_size", megabytes))
    return 2 * megabytes << 20
