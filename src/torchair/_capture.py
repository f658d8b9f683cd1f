"""Modes reduce-overhead and npugraph_ex: the compiled graph is captured once a shape and replayed.

Inputs are of three kinds. Parameters stay where they are; another address is another graph. Inputs that the graph writes
keep their own memory; at another address, or with other core limits of the stream, the graph is captured again in place of
the last one. All others are copied into memory of the captured graph (or, without `clone_input`, into
the tensors of the first call). Integers that no shape depends on, such as the lengths of attention, are updated.
Outputs are memory of the captured graph: the next replay overwrites them, unless `enable_output_clone` is set.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torch_npu.npu import npu_config
from torchair._host import bodies
from torchair._host.run import written_inputs
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger


@dataclasses.dataclass
class CaptureInputs:
    """What capture must know of a graph's inputs, by position."""

    written: list[int]  # changed in place
    parameters: list[int]  # of the model: their addresses stay
    updated: list[int]  # integers that no shape depends on
    updated_nodes: list[str] = dataclasses.field(default_factory=list)  # the nodes that read them

    @classmethod
    def of(cls, gm: GraphModule) -> CaptureInputs:
        places = gm.graph.find_nodes(op="placeholder")
        written = written_inputs(gm)
        updated = _free_integers(gm, places)
        readers = {user.name: None for index in updated for user in places[index].users}
        return cls(written, _static_inputs(len(places), written), updated, list(readers))

    def as_dict(self) -> dict[str, list[int]]:
        return dataclasses.asdict(self)


def _static_inputs(count: int, written: list[int]) -> list[int]:
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    known = metadata.static_input_indices if metadata is not None else []
    return [index for index in known if index < count and index not in written]


def _free_integers(gm: GraphModule, places: Sequence[torch.fx.Node]) -> list[int]:
    in_shapes = set()
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, torch.Tensor):
                for size in (*one.shape, *one.stride(), one.storage_offset()):
                    if isinstance(size, torch.SymInt):
                        in_shapes |= size.node.expr.free_symbols
    found = []
    for index, node in enumerate(places):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and not value.node.expr.free_symbols & in_shapes:
            found.append(index)
    return found


@dataclasses.dataclass
class _Entry:
    """One captured graph: what it reads and what it wrote."""

    graph: Any
    values: list[Any]  # inputs as captured; integers among them are read anew in each replay
    results: list[Any]
    sources: list[int | None]  # for each result, the input whose memory it is a view of
    held: Any  # what it must find unchanged


class Captured:
    """One compiled graph and all that was captured of it."""

    def __init__(
        self,
        program: Callable[[list[Any]], Any],
        inputs: CaptureInputs,
        config: CompilerConfig,
        eager: Callable[..., Any] | None = None,
    ):
        self._boxed_call = True  # of the instance: wrappers copy it from there
        self.program, self.inputs = program, inputs
        self.eager = eager
        options = config.debug.aclgraph
        self.clone_input = bool(options.clone_input)
        self.clone_output = bool(options.enable_output_clone)
        self.recapture = bool(options.force_recapture)
        self.limit = options.static_capture_size_limit.raw
        self.error_mode = options.capture_error_mode.raw
        self.frozen = bool(config.experimental_config.frozen_parameter)
        self.pool = config.aclgraph_config.use_custom_pool.raw
        self.shares_pool = not options.disable_mempool_reuse_in_same_fx
        self.own = frozenset((*inputs.written, *inputs.parameters))  # inputs that are not copied
        self.entries: dict[Any, _Entry] = {}
        self.captures = 0
        self.exceeded = False
        self.others: list[int] | None = None

    def __call__(self, inputs: list[Any]) -> Any:
        given = list(inputs)
        inputs.clear()
        if torch.npu.is_current_stream_capturing():  # part of somebody else's graph
            return self.program(given)
        if self.exceeded:
            return self.eager(*given) if self.eager is not None else self.program(given)
        key = self._key(given)
        entry = self.entries.get(key)
        if entry is None and len(self.entries) == self.limit:
            logger.warning("more than %s captures: the graph runs eagerly from now on", self.limit)
            self.entries.clear()
            self.exceeded = True
            return self(given)
        talks = logger.isEnabledFor(logging.DEBUG)
        if entry is not None and entry.held == self._held(given) and not self.recapture:
            if talks:
                _tell("The current AclGraph no needs to be recaptured", key)
            self._update(entry, given)
        else:
            if talks:
                known = "No find captured AclGraph, it is captured now"
                again = "The current AclGraph needs to be recaptured"
                _tell(known if entry is None else again, key)
            entry = self.entries[key] = self._capture(given)
            if talks:
                self._tell_capture(key)
        entry.graph.replay()
        if talks and self.inputs.updated:
            _tell("Replay AclGraph and update input params successfully", key)
        return self._results(entry, given)

    def _key(self, given: list[Any]) -> Any:
        """What a captured graph is for: shapes, integers, addresses of parameters.

        Of a parameter the address says all: dynamo has compiled for its shape.
        """
        parts: list[Any] = (
            [] if self.frozen else [given[i].data_ptr() for i in self.inputs.parameters]
        )
        for index in self._others(given):
            value = given[index]
            if isinstance(value, torch.Tensor):
                parts += (value.shape, value.stride())
            elif index not in self.inputs.updated:
                parts.append(value)
        return tuple(parts)

    def _held(self, given: list[Any]) -> Any:
        """What else a captured graph keeps: addresses that it writes, core limits of its stream."""
        written = [given[i].data_ptr() for i in self.inputs.written]
        return written, npu_config.own_stream_limit()

    def _others(self, given: list[Any]) -> list[int]:
        """The positions of inputs that are no parameters; the number of inputs is the graph's."""
        if self.others is None:
            parameters = set(self.inputs.parameters)
            self.others = [index for index in range(len(given)) if index not in parameters]
        return self.others

    def _tell_capture(self, key: Any) -> None:
        for number, name in enumerate(self.inputs.updated_nodes):
            logger.debug("Record the %s th updated node: %s reads integers anew", number, name)
        reuse = "shared" if self.shares_pool else "not shared"
        _tell(f"After capturing fx_graph the pool is {reuse} and holds {_pools()}", key)

    def _capture(self, given: list[Any]) -> _Entry:
        self.captures += 1
        values = [
            value.clone() if self._copied(index, value) and self.clone_input else value
            for index, value in enumerate(given)
        ]
        graph = torch.npu.NPUGraph()
        if self.pool is None and self.shares_pool:
            self.pool = torch.npu.graph_pool_handle()
        random_state = torch.npu.get_rng_state()
        bodies.running.capturing = True
        try:
            with torch.npu.graph(graph, pool=self.pool, capture_error_mode=self.error_mode):
                results = list(self.program(values))
        finally:
            bodies.running.capturing = False
            torch.npu.set_rng_state(
                random_state
            )  # a capture computes nothing: replay draws the numbers
        sources = [_source(values, result) for result in results]
        return _Entry(graph, values, results, sources, self._held(given))

    def _copied(self, index: int, value: Any) -> bool:
        on_device = isinstance(value, torch.Tensor) and value.device.type == "npu"
        return on_device and index not in self.own

    def _update(self, entry: _Entry, given: list[Any]) -> None:
        for index in self._others(given):
            value = given[index]
            if not isinstance(value, torch.Tensor):
                entry.values[index] = value
            elif index not in self.own and value.data_ptr() != entry.values[index].data_ptr():
                entry.values[index].copy_(value)

    def _results(self, entry: _Entry, given: list[Any]) -> list[Any]:
        """The results, with views of copied inputs made views of the caller's again."""
        results = []
        for result, source in zip(entry.results, entry.sources, strict=True):
            if not isinstance(result, torch.Tensor) or result.device.type != "npu":
                results.append(result)
            elif source is not None:
                base = given[source]
                shift = result.storage_offset() - entry.values[source].storage_offset()
                offset = base.storage_offset() + shift
                results.append(base.as_strided(result.size(), result.stride(), offset))
            else:
                results.append(result.clone() if self.clone_output else result.detach())
        return results


def _tell(what: str, key: Any) -> None:
    # programs look for upstream's words in this log
    logger.debug("%s (graph key %s)", what, key)


def _pools() -> str:
    """The segments of graphs' pools, one a line."""
    lines = []
    for segment in torch.npu.memory_snapshot():
        pool = tuple(segment["segment_pool_id"])
        if pool == (0, 0):
            continue
        active = sum(block["state"] == "active_allocated" for block in segment["blocks"])
        told = {
            "device": segment["device"],
            "stream": segment["stream"],
            "pool_id": pool,
            "block_num": len(segment["blocks"]),
            "activate_num": active,
            "total_size": segment["total_size"],
            "allocated_size": segment["allocated_size"],
        }
        lines.append(f"\n{told}")
    return "".join(lines)


def _source(values: list[Any], result: Any) -> int | None:
    """The input on whose memory the result lies."""
    if not isinstance(result, torch.Tensor) or result.device.type != "npu":
        return None
    place = result.untyped_storage().data_ptr()
    for index, value in enumerate(values):
        on_device = isinstance(value, torch.Tensor) and value.device == result.device
        if on_device and place != 0 and value.untyped_storage().data_ptr() == place:
            return index
    return None
