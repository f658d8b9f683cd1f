"""One function a type of node: `ge_apis.Add(x1, x2, node_name="Add")` adds it to the current graph.

This is the language of graphs dumped as py: such a file builds its graph again when it is run. Inputs and attributes
go by position, in the prototype's order where one is known, or by name. Tensors, None and lists of tensors are inputs,
numbers before one of these become constants, everything else is an attribute. `outputs` names the results.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torchair.ge import graph
from torchair.ge._types import DataType, proto_type
from torchair.ge.graph import Cast, Tensor, current
from torchair.ge.prototypes import Prototype, prototype

__all__ = ["Cast", "Const", "Data", "NetOutput", "RefData", "Tensor"]


def Const(
    v: Any,
    dtype: int | None = None,
    node_name: str | None = None,
    readable: bool = True,
    placement: str = "",
) -> Tensor:
    """torchair.ge.Const, with the place where the constant lies."""
    made = graph.Const(v, dtype, node_name, readable)
    made.desc.device_type = placement
    return made


def Data(
    *,
    index: int,
    dtype: int = DataType.DT_FLOAT,
    shape: Sequence[int] | None = None,
    format: str = "ND",
    placement: str = "NPU",
    node_name: str | None = None,
) -> Tensor:
    """An input of the graph."""
    return _data("Data", index, dtype, shape, format, placement, node_name)


def RefData(
    *,
    index: int,
    dtype: int = DataType.DT_FLOAT,
    shape: Sequence[int] | None = None,
    format: str = "ND",
    placement: str = "NPU",
    node_name: str | None = None,
) -> Tensor:
    """An input that the graph writes."""
    return _data("RefData", index, dtype, shape, format, placement, node_name)


def _data(
    kind: str,
    index: int,
    dtype: int,
    shape: Sequence[int] | None,
    layout: str,
    placement: str,
    node_name: str | None,
) -> Tensor:
    op = current().add(kind, node_name)
    op.attr["index"].i = index
    desc = op.output_desc.add(name="y", layout=layout, device_type=placement)
    desc.dtype = proto_type(dtype)
    desc.shape.dim.extend([-2] if shape is None else shape)
    op.input_desc.add().CopyFrom(desc)
    op.input_desc[0].name = "x"
    made = Tensor(op)
    made.symsize = None if shape is None else list(shape)
    return made


def NetOutput(inputs: Sequence[Tensor], *, dependencies: Sequence[Any] = ()) -> None:
    """What the graph returns; nodes in `dependencies` run though nobody reads their results."""
    op = current().add("NetOutput")
    for index, one in enumerate(inputs):
        op.input.append(one.tensor)
        op.input_desc.add().CopyFrom(one.desc)
        op.input_desc[-1].name = f"input{index}"
        current().proto.output.append(one.tensor)
    op.input.extend(_controller(one) for one in dependencies)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(_add, name)


def _add(
    kind: str,
    *args: Any,
    outputs: Sequence[Any] | None = None,
    dependencies: Sequence[Any] = (),
    node_name: str | None = None,
    **named: Any,
) -> Any:
    known = prototype(kind) or Prototype(tuple(f"x{i}" for i in range(len(args))))
    last = max((i for i, one in enumerate(args) if graph.is_input(one)), default=-1)
    positional = [
        Const(one) if i < last and not graph.is_input(one) else one for i, one in enumerate(args)
    ]
    given = dict(zip(known.arguments, positional, strict=False)) | named
    inputs = {key: value for key, value in given.items() if graph.is_input(value)}
    attrs = {key: graph.attribute(value) for key, value in given.items() if key not in inputs}
    names = list(known.outputs if outputs is None else outputs)
    made = graph.node(kind, inputs, names, attrs, node_name)
    current().proto.op[-1].input.extend(_controller(one) for one in dependencies)
    return made


def _controller(one: Any) -> str:
    return one.controller if isinstance(one, Tensor) else str(one)
