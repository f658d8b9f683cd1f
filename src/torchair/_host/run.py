"""Compiled host code as one task of the device: npu tensors in, npu tensors out, no byte copied."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from softnpu import _C
from torchair._host import bodies
from torchair._host.lower import lower


class HostProgram:
    """A graph that Inductor compiled for the host, called with the device's tensors.

    Its temporaries and results are drawn from the device's memory; results that the graph leaves on the CPU are
    brought out of it. `written` are the inputs that it changes in place.
    """

    def __init__(
        self,
        code: Callable[[list[Any]], Any],
        device: int,
        on_cpu: frozenset[int] = frozenset(),
        held: Sequence[torch.Tensor] = (),
        written: Sequence[int] = (),
    ):
        self._boxed_call = True  # of the instance: wrappers copy it from there
        self.code = code
        self.device = device
        self.on_cpu = on_cpu
        self.held = tuple(held)  # the graph's own tensors, its last inputs
        self.written = tuple(written)
        #: Inductor's output as text and the tensors it names; None if there was nothing to generate
        self.source: str | None = getattr(code, "source_code", None) or None
        self.constants: dict[str, torch.Tensor] = dict(getattr(code, "constants", None) or {})

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Runs the program. A captured one is called again by replay, and reads integers from `inputs` then."""
        places = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        given = (*(inputs[i] for i in places), *self.held)
        body = functools.partial(self._body, inputs, places)
        with torch.npu.device(self.device):
            kept = []
            if self.written and torch.npu.is_current_stream_capturing():
                written = (inputs[i] for i in self.written)
                views = [_C.host_view(t) if t.device.type == "npu" else t for t in written]
                kept = [(view, view.clone()) for view in views]
            # There is more to it than the operators that a capture sees: a graph calls it as a whole.
            results = _C.run_kernel("compiled_graph", body, given, {}, host_ok=True, whole=True)
            for view, before in kept:  # a capture computes nothing
                view.copy_(before)
        if not self.on_cpu:
            return results
        return [r.cpu() if i in self.on_cpu else r for i, r in enumerate(results)]

    def _body(self, inputs: Sequence[Any], places: list[int], *tensors: torch.Tensor) -> Any:
        values = [*inputs, *tensors[len(places) :]]
        for place, tensor in zip(places, tensors, strict=False):
            values[place] = tensor
        before, bodies.running.device = bodies.running.device, self.device
        try:
            return list(self.code(values))
        finally:
            bodies.running.device = before


def compile_on_host(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    fake_mode: FakeTensorMode,
    visible: Sequence[int] | None = None,
    keep_cat: bool = False,
    **inductor: Any,
) -> HostProgram:
    """Lowers the graph, compiles it with Inductor, and wraps it as a task of the graph's device.

    `visible` are the outputs whose strides the user sees; `keep_cat` calls concatenations, which Inductor would
    otherwise spare by writing the parts in place; `inductor` goes to `compile_fx_inner`.
    """
    from torch._inductor.compile_fx import compile_fx_inner

    whole = (torch.ops.aten.cat.default,) if keep_cat else ()
    lowered = lower(gm, example_inputs, fake_mode, whole)
    output = next(iter(reversed(lowered.graph.graph.nodes)))
    output.meta["user_visible_output_idxs"] = (
        list(range(len(output.args[0]))) if visible is None else list(visible)
    )
    code = compile_fx_inner(lowered.graph, lowered.inputs, **inductor)
    return HostProgram(code, device_of(gm), cpu_outputs(gm), lowered.constants, written_inputs(gm))


def written_inputs(gm: GraphModule) -> list[int]:
    """The positions of inputs that the graph changes in place."""
    places = gm.graph.find_nodes(op="placeholder")
    return [index for index, node in enumerate(places) if _is_written(node)]


def _is_written(node: torch.fx.Node) -> bool:
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        for argument, value in zip(schema.arguments if schema else (), user.args, strict=False):
            if value is node and argument.alias_info is not None and argument.alias_info.is_write:
                return True
    return False


def cpu_outputs(gm: GraphModule) -> frozenset[int]:
    """The positions of outputs that the graph leaves on the CPU."""
    found = set()
    for position, node in enumerate(_outputs(gm)):
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            found.add(position)
    return frozenset(found)


def device_of(gm: GraphModule) -> int:
    """The npu device of the graph; the current one if no tensor names any."""
    for index in npu_devices(gm):
        return index
    return torch.npu.current_device()


def npu_devices(gm: GraphModule) -> list[int]:
    """All npu devices on which the graph has tensors, in order of appearance."""
    found: dict[int, None] = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, torch.Tensor) and one.device.type == "npu":
                found[one.device.index or 0] = None
    return list(found)


def _outputs(gm: GraphModule) -> Sequence[Any]:
    output = next(iter(reversed(gm.graph.nodes)))
    return output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
