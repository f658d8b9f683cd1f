"""Collectives as tasks: each group has a stream of its own, as HCCL has, and the program waits for the result in some way.

PyTorch's operators of torch.distributed (`c10d::allreduce_`) are seen with their groups and tensors, whoever calls them:
below autograd's key, where the profiler stands.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from softnpu.collectives import KINDS
from softnpu.plan.record.launches import Launches
from softnpu.plan.record.log import Log
from softnpu.plan.record.owners import Owners, address_of
from softnpu.plan.recording import COMMUNICATION
from softnpu.plan.tasks import Task

_FIRST_STREAM = 1000  # beyond those of the program


class Collectives:
    """Sees the collectives on NPU tensors, of all groups."""

    def __init__(self, log: Log, owners: Owners, launches: Launches) -> None:
        self._log, self._owners, self._launches = log, owners, launches
        self._streams: dict[tuple[int, ...], int] = {}
        self.sizes: dict[tuple[int, ...], int] = {}  # bytes of the buffers of each group in use
        self._library = torch.library.Library("c10d", "IMPL")
        for name, kind in KINDS.items():
            overload = getattr(torch.ops.c10d, name).default
            see = functools.partial(self._see, overload, kind)
            self._library.impl(name, see, "ADInplaceOrView", with_keyset=True)
        launches.on_collective = self.unseen
        launches.ranks_of_group = _ranks_of_group
        launches.on_fused = lambda ranks: self.sizes.setdefault(ranks, _buffer_bytes(None))

    def _see(self, overload: Any, name: str, keys: Any, *args: Any) -> Any:
        below = keys & torch._C._after_ADInplaceOrView_keyset
        parts = _parts(overload, args)
        if not any(tensor.device.type == "npu" for tensor in (*parts.read, *parts.written)):
            return overload.redispatch(below, *args)
        self._launches.flush()
        with self._launches.inside_collective():
            result = overload.redispatch(below, *args)
        self._add(name, parts)
        return result

    def waited(self, outputs: Any) -> None:
        """The program waited for a work with these results: the current stream goes on after it."""
        for tensor in _tensors(outputs):
            address = address_of(tensor)
            if address:
                place = (tensor.device.index, torch.npu.current_stream(tensor.device).stream_id)  # type: ignore[attr-defined]
                self._log.wait(place, self._log.writer_of(address))

    def _add(self, name: str, parts: _Parts) -> None:
        read, written = parts.read, parts.written
        ranks = tuple(dist.get_process_group_ranks(parts.group))
        device = (*read, *written)[0].device.index
        place = (device, torch.npu.current_stream(device).stream_id)  # type: ignore[attr-defined]
        self._owners.mark(COMMUNICATION, written)
        pair = (dist.get_rank(), ranks[parts.peer]) if parts.peer is not None else ranks
        self._append(
            name, device, place, ranks, pair, self._launches.specs(read), self._launches.specs(written),
            [address_of(t) for t in read], [address_of(t) for t in written],
        )  # fmt: skip
        self.sizes[ranks] = _buffer_bytes(parts.group) if len(ranks) > 1 else 0

    def unseen(self, record: Any) -> None:
        """A collective of the trace that passed no operator above: the stream that it was called on waits for it."""
        name, _, device, stream, *_ = record
        ranks = tuple(record[9])
        place = (device, stream)
        read, written = (self._launches.specs_of(notes) for notes in record[7:9])
        self._log.wait(
            place, self._append(name, device, place, ranks, ranks, read, written, [], [])
        )
        self.sizes.setdefault(ranks, _buffer_bytes(None) if len(ranks) > 1 else 0)

    def _append(
        self, name: str, device: int, place: tuple[int, int], group: tuple[int, ...], ranks: tuple[int, ...],
        inputs: Any, outputs: Any, reads: list[int], writes: list[int],
    ) -> int:  # fmt: skip
        stream = self._streams.setdefault(group, _FIRST_STREAM + len(self._streams))
        self._log.wait((device, stream), self._log.last_of(place))
        task = Task(
            f"hccl::{name.rpartition('::')[2]}", "collective", device, stream, inputs, outputs,
            host_waits=name.endswith("barrier"), ranks=len(ranks), peers=ranks,
        )  # fmt: skip
        return self._log.add(task, filter(None, reads), filter(None, writes))


@dataclass(slots=True)
class _Parts:
    """The tensors that a collective reads and writes, its group, and of a message the other rank in it."""

    read: list[torch.Tensor] = field(default_factory=list)
    written: list[torch.Tensor] = field(default_factory=list)
    group: Any = None
    peer: int | None = None


def _parts(overload: Any, args: Sequence[Any]) -> _Parts:
    found = _Parts()
    for argument, value in zip(overload._schema.arguments, args):
        if argument.name == "process_group":
            found.group = dist.ProcessGroup.unbox(value)
        elif argument.name.startswith("output"):
            found.written += _tensors(value)
        elif argument.name.startswith(("input", "tensor")):
            found.read += _tensors(value)
        elif argument.name in ("dst", "src"):
            found.peer = value
    if not found.written and overload._schema.name != "c10d::send":
        found.written = found.read
    return found


@functools.cache
def _ranks_of_group(name: str) -> tuple[int, ...]:
    """The global ranks of the group whose hccl backend has this name; none for a group of one process alone."""
    device = torch.device("npu")
    for group in dist.distributed_c10d._world.pg_map:
        if device in group._device_types:
            backend: Any = group._get_backend(device)
            if backend.get_hccl_comm_name(dist.get_rank()) == name:
                return tuple(dist.get_process_group_ranks(group))
    return ()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _buffer_bytes(group: Any) -> int:
    """HCCL's buffers of a communicator, one to send and one to receive: HCCL_BUFFSIZE, or the group's own setting.

    CANN's page of HCCL_BUFFSIZE (hiascend.com, document/detail/en/canncommercial/850/commlib/hcclug/hcclug_000076.html): in
    MB, 200 by default; each communicator occupies twice as much; `hccl_buffer_size` of a group comes first.
    """
    import os

    size = os.environ.get("HCCL_BUFFSIZE", "")
    megabytes = int(size) if size.isdecimal() else 200
    if group is not None:
        options = getattr(group._get_backend(torch.device("npu")), "options", None)
        config = getattr(options, "hccl_config", None) or {}
        megabytes = int(config.get("hccl_buffer_size", megabytes))
    return 2 * megabytes << 20
