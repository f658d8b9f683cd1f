"""From an ATen graph on npu to the same graph on host tensors, retraced with the host's decompositions."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from torchair._host import operators
from torchair._host.table import host_decompositions


class Lowered(NamedTuple):
    """The host's graph, its fake inputs, and the tensors that the graph held: they are its last inputs."""

    graph: GraphModule
    inputs: list[Any]
    constants: list[torch.Tensor]


def lower(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    fake_mode: FakeTensorMode,
    whole: Sequence[OpOverload] = (),
) -> Lowered:
    """Retraces the graph on the host. The given one is left as it is; operators in `whole` are called, not fused."""
    table = host_decompositions() | {one: operators.whole_host_operator(one) for one in whole}
    constants = _constants(gm)

    def run(*inputs: Any) -> Any:
        count = len(example_inputs)
        held = {id(one): given for one, given in zip(constants, inputs[count:], strict=True)}
        return _ToHost(gm, held).run(*inputs[:count])

    with fake_mode, enable_python_dispatcher():
        host_inputs = [
            operators.host_fake(fake_mode.from_tensor(value, static_shapes=True))
            if isinstance(value, torch.Tensor)
            else value
            for value in [*example_inputs, *constants]
        ]
        trace = make_fx(run, decomposition_table=table, record_module_stack=False)
        return Lowered(trace(*host_inputs), host_inputs, constants)


def _constants(gm: GraphModule) -> list[torch.Tensor]:
    """The tensors that the graph and its subgraphs hold, each once."""
    found: dict[int, torch.Tensor] = {}
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.find_nodes(op="get_attr"):
            value = attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor):
                found[id(value)] = value
    return list(found.values())


class _ToHost(Interpreter):
    """Runs the npu graph on host tensors: npu devices among arguments become cpu, operators without CPU form host operators."""

    def __init__(self, gm: GraphModule, held: dict[int, torch.Tensor]):
        super().__init__(gm)
        self.held = held

    def run_node(self, n: Node) -> Any:
        """The node's result, in the dtypes that the npu graph states: those of some CPU kernels depend on the device."""
        result = super().run_node(n)
        stated = n.meta.get("val")
        if n.op != "call_function" or stated is None:
            return result
        return pytree.tree_map(_as_stated, result, stated)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, GraphModule):
            return _ToHost(value, self.held).run
        return self.held[id(value)] if isinstance(value, torch.Tensor) else value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.device, _host_device, (args, kwargs))
        if isinstance(target, HigherOrderOperator):
            args, kwargs = pytree.tree_map_only(OpOverload, _host_operator, (args, kwargs))
        elif isinstance(target, OpOverload) and target not in host_decompositions():
            target = _host_operator(target)
        return super().call_function(target, args, kwargs)


def _as_stated(value: Any, stated: Any) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(stated, torch.Tensor):
        return value.to(stated.dtype)
    return value


def _host_device(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "npu" else device


def _host_operator(overload: OpOverload) -> OpOverload:
    return operators.host_operator_of(overload) or overload
