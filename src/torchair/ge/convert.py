"""From an ATen graph to the graph engine's: every FX node becomes nodes of a GeGraph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from torchair import _streams
from torchair.ge import dump as _dump
from torchair.ge import registry
from torchair.ge.graph import Const, Graph, Tensor, _Symbolic, node
from torchair.scope import _attributes

_MARKS = (_attributes.ENTER, _attributes.EXIT)


class GeGraph(Graph):
    """A converted graph; `inputs` are the names of its Data nodes, in order."""

    def __init__(self, name: str, model: Any = None):
        super().__init__(name, model)
        self.inputs: list[str] = []
        self.results: list[
            Any
        ] = []  # what the FX graph returns: tensors of the graph, or plain values

    def dump(self, path: str) -> None:
        """Writes the graph; the suffix of the path says how: txt, pbtxt or py."""
        _dump.write(self, path)


def data(graph: GeGraph, name: str, meta: Any) -> Tensor:
    """The node of a graph's input."""
    op = graph.add("Data", name)
    op.attr["index"].i = len(graph.inputs)
    op.output_desc.add(name="y")
    made = Tensor(op)
    made.set_meta(meta)
    op.input_desc.add().CopyFrom(made.desc)
    op.input_desc[0].name = "x"
    graph.inputs.append(op.name)
    return made


def convert(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    config: Any,
    name: str,
    gears: Any = None,
) -> GeGraph:
    """The graph engine's form of the graph; options of `config` and the `gears` of its inputs are its attributes.

    Raises RuntimeError that names every operator without a converter.
    """
    missing = sorted(map(str, without_converter(gm)))
    if missing:
        raise RuntimeError(
            f"operators without a converter: {', '.join(missing)}; torchair.register_fx_node_ge_converter "
            "registers one, and modes reduce-overhead and npugraph_ex need none"
        )
    graph = GeGraph(name)
    scopes = _attributes.attributes_of(gm)
    streams = _streams.indices(gm)
    with_modules = (
        bool(config.export.experimental.enable_record_nn_module_stack) if config else False
    )
    values: dict[Node, Any] = {}
    examples = iter(example_inputs)
    with graph:
        for fx in gm.graph.nodes:
            graph.comments[len(graph.proto.op)] = _comment(fx)
            graph.attributes = dict(scopes.get(fx, {}))
            if fx in streams:
                graph.attributes.setdefault(_attributes.STREAM, f"stream_{streams[fx]}")
            if with_modules and fx.meta.get("nn_module_stack"):
                graph.attributes["nn_module_stack"] = str(fx.meta["nn_module_stack"])
            if fx.op == "placeholder":
                example = next(examples, None)
                meta = fx.meta.get("val", example)
                values[fx] = data(graph, fx.name, meta) if _is_data(meta) else meta
            elif fx.op == "get_attr":
                values[fx] = _constant(gm, fx)
            elif fx.op == "call_function" and not _is_mark(fx):
                values[fx] = _call(graph, fx, values)
            elif fx.op == "output":
                graph.attributes = {}
                _finish(graph, pytree.tree_map_only(Node, values.__getitem__, fx.args[0]))
    if config is not None:
        _write_options(graph, config, gears)
    return graph


def _is_data(meta: Any) -> bool:
    """Whether an input is a value of the engine: not None, nor an object such as the mesh of a DTensor."""
    return isinstance(
        meta, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, list, tuple)
    )


def _is_mark(fx: Node) -> bool:
    """Whether the node is about streams and ranges, which are attributes of the others."""
    return fx.target in _MARKS or _streams.is_sync(fx)


def _write_options(graph: GeGraph, config: Any, gears: Any) -> None:
    options = {key: value for part in config.as_dict() for key, value in part.items()}
    if gears is not None:
        options |= gears.options(graph.proto)
    for key, value in options.items():
        graph.proto.attr[key].s = value.encode()
    if config.experimental_config.enable_ref_data:
        written = {op.input[0].partition(":")[0] for op in graph.proto.op if op.type == "Assign"}
        for op in graph.proto.op:
            if op.type == "Data" and op.name in written:
                op.type = "RefData"


def without_converter(gm: GraphModule) -> set[Any]:
    """The operators of the graph and of its branches that no GE graph can hold."""
    found = set()
    for module in gm.modules():
        for fx in module.graph.nodes if isinstance(module, GraphModule) else ():
            wraps = fx.target in (auto_functionalized, auto_functionalized_v2)
            target = fx.args[0] if wraps else fx.target
            known = _streams.is_sync(fx) or registry.has_converter(target)
            if fx.op == "call_function" and not known:
                found.add(target)
    return found


def _constant(gm: GraphModule, fx: Node) -> Any:
    value: Any = gm
    for part in str(fx.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        return value
    made = Const(value, node_name=fx.name, readable=False)
    made.set_meta(fx.meta.get("val", value))
    return made


def _call(graph: GeGraph, fx: Node, values: dict[Node, Any]) -> Any:
    args = pytree.tree_map_only(Node, values.__getitem__, fx.args)
    kwargs = pytree.tree_map_only(Node, values.__getitem__, fx.kwargs)
    meta = fx.meta.get("val")
    if fx.target is _attributes.WAIT_TENSOR:
        result = node("Identity", {"x": args[0]}, ["y"], dependencies=[args[1]])
    else:
        result = registry.convert_call(fx.target, args, kwargs, meta)
    _set_meta(result, meta)
    return result


def _set_meta(result: Any, meta: Any) -> None:
    if isinstance(result, Tensor):
        if isinstance(meta, (torch.Tensor, *_Symbolic)):
            result.set_meta(meta)
    elif isinstance(result, (list, tuple)) and isinstance(meta, (list, tuple)):
        for one, its in zip(result, meta, strict=False):
            _set_meta(one, its)


def _finish(graph: GeGraph, results: Any) -> None:
    graph.results = list(results)
    outputs = [one for one in graph.results if isinstance(one, Tensor)]
    op = graph.add("NetOutput")
    for index, one in enumerate(outputs):
        op.input.append(one.tensor)
        op.input_desc.add().CopyFrom(one.desc)
        op.input_desc[-1].name = f"input{index}"
        graph.proto.output.append(one.tensor)
    op.input.extend(f"{name}:-1" for name in graph.kept)


def _comment(fx: Node) -> list[str]:
    if fx.op != "call_function":
        return []
    lines = []
    if fx.stack_trace:
        where = fx.stack_trace.split(" File ")[-1].strip().replace("\n", " ")
        lines.append(f"# File {where}")
    arguments = [str(a) for a in fx.args] + [f"{k}={v}" for k, v in fx.kwargs.items()]
    call = fx._pretty_print_target(fx.target)
    return [*lines, f"## FX Code: {fx.name} = {call}({', '.join(arguments)})"]
