"""From launches to tasks: the trace says what ran where, the observer of launches which storages it read and wrote."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from softnpu import _C
from softnpu.plan.record.log import Log
from softnpu.plan.record.owners import address_of
from softnpu.plan.tasks import Task, TensorSpec

_INPUTS = 0  # the stage of a launch
_ATTENTION = "_scaled_dot_product_fused_attention"
_MAX_NUMBERS = 4096  # of a list among the attributes
_GROUPS = ("hcom", "group", "group_ep")  # arguments that name one
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Launches:
    """Sees every launch of the process. `take` gives the trace's records since the last call."""

    def __init__(self, log: Log, take: Any) -> None:
        self._log, self._take = log, take
        self._open = threading.local()
        self._numbers = itertools.count(1)
        self._specs: dict[tuple[tuple[int, ...], Any], TensorSpec] = {}
        self._causal: dict[int, bool] = {}  # by the storage of the query
        self.on_collective: Callable[[Any], None] | None = None
        self.on_fused: Callable[[tuple[int, ...]], Any] = lambda ranks: None
        self.ranks_of_group: Callable[[str], tuple[int, ...]] = lambda name: ()

    @contextlib.contextmanager
    def inside_collective(self) -> Iterator[None]:
        """A collective whose tensors the caller knows: what it launches itself, here, is no task of its own."""
        self._open.collective = True
        try:
            yield
        finally:
            self._open.collective = False
            with self._log.lock:
                thread = threading.get_native_id()
                for record in self._take():
                    if record[4] != thread:
                        self._log.add(self._task(record))

    def specs(self, tensors: Iterable[torch.Tensor]) -> tuple[TensorSpec, ...]:
        return tuple(self._spec(tuple(t.shape), t.dtype) for t in tensors)

    def specs_of(self, notes: Iterable[tuple[tuple[int, ...], Any]]) -> tuple[TensorSpec, ...]:
        return tuple(self._spec(shape, dtype) for shape, dtype in notes)

    def arguments(self, name: str, names: list[str], values: Any) -> None:
        """The arguments of an operator of torch_npu, which is launched next on this thread."""
        plain = tuple((key, _plain(v)) for key, v in zip(names, values) if _is_plain(v))
        self._open.attributes = (name, plain)

    def attention(self, causal: bool) -> None:
        """PyTorch's own attention, which is launched next on this thread, if it is fused."""
        self._open.causal = causal

    def observe(self, stage: int, name: str, tensors: list[torch.Tensor]) -> None:
        if getattr(self._open, "collective", False):
            return
        if stage == _INPUTS:
            self._open.inputs = (name, tensors)
            self._open.number = next(self._numbers)
            return
        self._open.number = 0
        before, inputs = getattr(self._open, "inputs", ("", []))
        self._open.inputs = ("", [])
        self._flush(name, inputs if before == name else [], tensors)

    def current(self) -> int:
        """The number of the launch that this thread is inside of; 0 for none."""
        return getattr(self._open, "number", 0)

    def flush(self) -> None:
        """Launches that nobody observed: replayed graphs, kernels that are no operators."""
        self._flush("", [], [])

    def _flush(self, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        with self._log.lock:
            records = self._take()
            thread, local = threading.get_native_id(), name.removeprefix("npu::")
            mine = next(
                (i for i in reversed(range(len(records)))
                 if records[i][4] == thread and records[i][0].split(".")[0] == local.split(".")[0]),
                None,
            )  # fmt: skip
            # a kernel that communicates: the collectives inside of it are its own
            own = (
                [r for r in records if _ranks(r) and r[4] == thread]
                if self._is_fused(local)
                else []
            )
            for index, record in enumerate(records):
                if any(record is one for one in own):
                    continue
                if _ranks(record) and self.on_collective is not None:
                    self.on_collective(record)
                elif index == mine:
                    self._add(record, name, inputs, outputs, self._ranks_of(local, own))
                else:
                    self._log.add(self._task(record))

    def _is_fused(self, name: str) -> bool:
        """Whether the operator that was launched last on this thread talks to a group."""
        given, plain = getattr(self._open, "attributes", ("", ()))
        return given == name and any(key in _GROUPS and value for key, value in plain)

    def _ranks_of(self, name: str, own: Sequence[Any]) -> tuple[int, ...]:
        """The group of a kernel that communicates: of the collectives inside of it, or by its name."""
        if own:
            return _ranks(own[0])
        if not self._is_fused(name):
            return ()
        names = [str(value) for key, value in self._open.attributes[1] if key in _GROUPS and value]
        return self.ranks_of_group(names[0])

    def _add(
        self, record: Any, name: str, inputs: list[Any], outputs: list[Any], ranks: tuple[int, ...] = ()
    ) -> None:  # fmt: skip
        read = [address_of(tensor) for tensor in inputs]
        written = [address_of(tensor) for tensor in outputs] or read
        task = self._copy(record, inputs) if name in _copies() else None
        if task is None:
            task = self._task(record, [t for t in inputs if t.device.type == "npu"], read)
        if len(ranks) > 1:
            task = replace(task, ranks=len(ranks), peers=ranks)
            self.on_fused(ranks)
        self._log.add(task, filter(None, read), filter(None, written))

    def _task(
        self, record: Any, inputs: list[torch.Tensor] | None = None, read: Sequence[int] = ()
    ) -> Task:
        name, _, device, stream, _, _, _, given, made = record[:9]
        return Task(
            name if "::" in name else f"npu::{name}", "kernel", device, stream,
            self.specs_of(given) if inputs is None else self.specs(inputs), self.specs_of(made),
            attributes=self._attributes(name, read), host_waits=host_waits(name),
        )  # fmt: skip

    def _copy(self, record: Any, tensors: list[torch.Tensor]) -> Task | None:
        """A copy from or to the host, which waits for it unless the host's memory is pinned, or between devices."""
        if len(tensors) != 2:
            return None
        to, source = tensors if record[0] == "aten::copy_" else tensors[::-1]
        if to.device == source.device:
            return None
        host = next((t for t in (to, source) if t.device.type == "cpu"), None)
        direction = "p2p" if host is None else "h2d" if host is source else "d2h"
        spec = (self._spec(tuple(source.shape), source.dtype),)
        waits = host is not None and not host.is_pinned()
        return Task(
            "copy", "copy", record[2], record[3], () if direction == "h2d" else spec,
            () if direction == "d2h" else spec, (("direction", direction),), host_waits=waits,
        )  # fmt: skip

    def _spec(self, shape: tuple[int, ...], dtype: Any) -> TensorSpec:
        spec = self._specs.get((shape, dtype))
        if spec is None:
            spec = TensorSpec(tuple(shape), str(dtype).removeprefix("torch."))
            self._specs[shape, dtype] = spec
        return spec

    def _attributes(self, name: str, read: Sequence[int]) -> tuple[tuple[str, object], ...]:
        given, plain = getattr(self._open, "attributes", ("", ()))
        if given == name:
            self._open.attributes = ("", ())
            return plain
        if _ATTENTION not in name or not read:
            return ()
        if not name.endswith("backward"):  # which has the same query among its inputs
            causal, self._open.causal = getattr(self._open, "causal", False), False
            self._causal[read[0]] = causal
        return (("is_causal", any(self._causal.get(address, False) for address in read)),)


def _ranks(record: Any) -> tuple[int, ...]:
    """The group of a collective; of other tasks, nothing."""
    return tuple(record[9] or ()) if len(record) > 9 else ()


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= _MAX_NUMBERS and all(isinstance(v, int) for v in value)
    return isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> object:
    return tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else value


@functools.cache
def _copies() -> frozenset[str]:
    """The operators that copy between host and device."""
    return frozenset(n for n, traits in _C.operator_traits().items() if traits["copies"])


@functools.cache
def host_waits(name: str) -> bool:
    """Whether the host needs a value of the result before it goes on (`item`, `nonzero`)."""
    space, _, local = name.rpartition("::")
    packet = getattr(getattr(torch.ops, space or "npu"), local.split(".")[0], None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    return any(_WAITING & set(getattr(packet, which).tags) for which in packet.overloads())
