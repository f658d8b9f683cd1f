"""Graphs of the graph engine, their tensors, and the nodes that converters build: Const, Cast, Clone, custom_op.

Mirrors upstream's torchair.ge. Nodes enter the graph that is current on the thread: `with graph: ...`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchair.ge import attr
from torchair.ge._types import DataType, from_proto, ge_type, proto_type, torch_type
from torchair.ge.ir import ModelDef, TensorDescriptor

_Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SYMBOL_TYPES = {
    torch.SymInt: torch.int64,
    torch.SymFloat: torch.float32,
    torch.SymBool: torch.bool,
}


class Graph:
    """A graph under construction: `proto` is its GraphDef, `model` the ModelDef around it."""

    def __init__(self, name: str = "graph", model: Any = None):
        self.model = ModelDef(name=name) if model is None else model
        self.proto = self.model.graph[0] if self.model.graph else self.model.graph.add(name=name)
        self.names = {op.name for op in self.proto.op}
        self.kept: list[str] = []  # nodes that run though nobody reads their results
        self.attributes: dict[str, str | bool] = {}  # of the nodes being added
        self.comments: dict[int, list[str]] = {}  # before which node, what

    def __enter__(self) -> Graph:
        _current.stack.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.stack.remove(self)

    @property
    def op(self) -> Any:
        """The nodes of the GraphDef, to which older programs add theirs by hand."""
        return self.proto.op

    def unique_name(self, wanted: str | None, kind: str) -> str:
        """The given name, which must be free, or one made from the operator's type."""
        if wanted is not None:
            if not wanted.strip():
                raise AssertionError("node_name must not be empty")
            if wanted in self.names:
                raise AssertionError(f"node_name {wanted!r} is already used in this graph")
        name, count = wanted or kind, 0
        while name in self.names:
            count += 1
            name = f"{kind}_{count}"
        self.names.add(name)
        return name

    def add(self, kind: str, node_name: str | None = None) -> Any:
        """A new node, still without inputs and outputs."""
        op = self.proto.op.add(type=kind, name=self.unique_name(node_name, kind))
        for key, value in self.attributes.items():
            if isinstance(value, bool):
                op.attr[key].b = value
            else:
                op.attr[key].s = value.encode()
        return op


class _Stack(threading.local):
    def __init__(self) -> None:
        self.stack: list[Graph] = []
        self.default = Graph()


_current = _Stack()


def current() -> Graph:
    """The innermost `with graph:` of this thread, else the thread's default graph."""
    return _current.stack[-1] if _current.stack else _current.default


class Tensor:
    """An output of a node; converters receive and return these."""

    def __init__(self, node: Any, index: int = 0):
        self.node, self.index = node, index
        self.desc = node.output_desc[index]
        self.tensor, self.controller = f"{node.name}:{index}", f"{node.name}:-1"
        self.meta: Any = None
        self.symsize: list[Any] | None = None

    @property
    def dtype(self) -> int:
        """The number in DataType."""
        return from_proto(self.desc.dtype)

    @property
    def rank(self) -> int:
        if self.symsize is None:
            raise AssertionError(f"the rank of {self.tensor} is not known")
        return len(self.symsize)

    def set_meta(self, meta: Any) -> None:
        """What shape inference found: type, shape (-1 where it is symbolic) and device."""
        self.meta = meta
        if isinstance(meta, torch.Tensor):
            dtype, self.symsize = meta.dtype, list(meta.size())
            self.desc.device_type = "CPU" if meta.device.type == "cpu" else "NPU"
            text = f"Tensor(dtype={dtype}, shape={meta.size()})"
        else:
            dtype = _SYMBOL_TYPES.get(type(meta)) or torch.tensor(meta).dtype
            self.symsize = [len(meta)] if isinstance(meta, (list, tuple)) else []
            self.desc.device_type, text = "CPU", f"{type(meta).__name__}({meta})"
        self.desc.dtype = proto_type(ge_type(dtype))
        self.desc.layout = "ND"
        self.desc.shape.dim[:] = [s if isinstance(s, int) else -1 for s in self.symsize]
        self.desc.attr["_meta"].s = text.encode()

    def __repr__(self) -> str:
        return f"Tensor({self.tensor}, dtype={self.dtype}, size={self.symsize})"


class TensorSpec:
    """What shape inference found for an output: `dtype`, `rank`, `size`."""

    def __init__(self, meta: Any):
        self._meta = meta

    @property
    def dtype(self) -> int:
        kind = _SYMBOL_TYPES.get(type(self._meta))
        return ge_type(kind or self._meta.dtype)

    @property
    def rank(self) -> int:
        return self._meta.dim() if isinstance(self._meta, torch.Tensor) else 0

    @property
    def size(self) -> list[int]:
        sizes = list(self._meta.size()) if isinstance(self._meta, torch.Tensor) else []
        if any(not isinstance(s, int) for s in sizes):
            raise AssertionError(f"size of {self}: the shape is dynamic")
        return sizes

    def __repr__(self) -> str:
        sizes = list(self._meta.size()) if isinstance(self._meta, torch.Tensor) else []
        return f"TensorSpec(dtype={self.dtype}, size={sizes})"


for _public in (Tensor, TensorSpec):
    _public.__module__ = "torchair.ge"


def Const(
    v: Any, dtype: int | None = None, node_name: str | None = None, readable: bool = True
) -> Tensor:
    """A constant. Python floats are float32 unless `dtype` says otherwise; `readable` keeps its text as attribute."""
    if isinstance(v, Tensor):
        raise ValueError("Const: expected a value, received a Tensor of the graph")
    with unset_fake_temporarily():
        if not isinstance(v, torch.Tensor):
            array = np.array(v, dtype=np.float32 if isinstance(v, float) else None)
            given = (
                ge_type(torch.from_numpy(array).dtype) if dtype is None and array.size else dtype
            )
            number = DataType.DT_INT32 if given is None else given
            value = torch.tensor(v, dtype=torch_type(number))
        else:
            number = ge_type(v.dtype) if dtype is None else dtype
            value = v.detach().cpu().to(torch_type(number)).contiguous()
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    op = current().add("Const", node_name)
    if readable:
        op.attr["_readable_value"].s = repr(v).encode()
    stored = op.attr["value"].t
    stored.data = data
    stored.desc.dtype, stored.desc.layout = proto_type(number), "ND"
    stored.desc.shape.dim.extend(value.shape)
    desc = op.output_desc.add()
    desc.CopyFrom(stored.desc)
    desc.name = "y"
    made = Tensor(op)
    made.symsize = list(value.shape)
    return made


def as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Const(value)


def Cast(
    x: Tensor, *, dst_type: int, dependencies: Sequence[Tensor] = (), node_name: str | None = None
) -> Tensor:
    """The tensor in another type; it runs after `dependencies`."""
    x = as_tensor(x)
    attrs = {"dst_type": attr.Int(dst_type)}
    made = node("Cast", {"x": x}, ["y"], attrs, node_name, dependencies)
    made.desc.dtype, made.symsize = proto_type(dst_type), x.symsize
    return made


def Clone(
    x: Tensor, *, dependencies: Sequence[Tensor] | None = (), node_name: str | None = None
) -> Tensor:
    """A copy of the tensor; it is made after `dependencies`."""
    for one in (x, *(dependencies or ())):
        if not isinstance(one, Tensor):
            raise AssertionError(f"Clone: expected a Tensor, received {one!r}")
    made = node("TensorMove", {"x": x}, ["y"], None, node_name, dependencies)
    made.desc.dtype, made.symsize = x.desc.dtype, x.symsize
    return made


def custom_op(
    op_type: str,
    *args: Any,
    inputs: Mapping[str, Tensor | Sequence[Tensor] | None] | None = None,
    outputs: Sequence[str | tuple[str, int]] | None = None,
    attrs: Mapping[str, Any] | None = None,
    node_name: str | None = None,
) -> Any:
    """A node of any type.

    Args:
        op_type: the operator's type.
        args: its inputs, then its attributes, in the prototype's order; then `inputs`, `outputs`, `attrs` are not read.
        inputs: name -> tensor, list of tensors (a dynamic input) or None (an optional input that is absent).
        outputs: names, or (name, number) for a dynamic output.
        attrs: name -> value made by torchair.ge.attr.
        node_name: unique in the graph; by default made from the type.

    Returns:
        One result an output, as a tuple if there are several; a dynamic output is a list.

    Differs from upstream: prototypes are known for this package's operators and for those that the interpreter runs;
    in a converter, other types take that of the operator that it converts. Of all others, `args` are inputs x0, x1,
    ..., attributes attr0, attr1, ... and there is the single output y.
    """
    if args:
        inputs, attrs, outputs = _by_position(op_type, args)
    return node(op_type, inputs, outputs, attrs, node_name)


def _by_position(op_type: str, args: Sequence[Any]) -> tuple[Any, Any, list[str]]:
    from torchair.ge.prototypes import prototype

    known = prototype(op_type)
    if known is None:
        inputs = {f"x{i}": a for i, a in enumerate(args) if is_input(a)}
        values = [a for a in args if not is_input(a)]
        return inputs, {f"attr{i}": attribute(v) for i, v in enumerate(values)}, ["y"]
    if len(args) > len(known.arguments):
        raise AssertionError(
            f"custom op '{op_type}': expected at most {len(known.arguments)} arguments "
            f"{list(known.arguments)}, received {len(args)}"
        )
    named = dict(zip(known.arguments, args, strict=False))
    inputs = {name: value for name, value in named.items() if is_input(value)}
    attrs = {name: attribute(v) for name, v in named.items() if name not in inputs}
    return inputs, attrs, list(known.outputs)


def is_input(value: Any) -> bool:
    """Whether a value given by position is an input of a node: a tensor, tensors, or an optional one left out."""
    listed = isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value)
    return value is None or listed or isinstance(value, Tensor)


def attribute(value: Any) -> Any:
    """A Python value as attribute, its type chosen by its own."""
    if isinstance(value, attr._Attr):
        return value
    if isinstance(value, torch.dtype):
        return attr.DataType(ge_type(value))
    if isinstance(value, (torch.device, torch.layout, torch.memory_format, complex)):
        return attr.Str(str(value))
    if isinstance(value, (list, tuple)):
        first = value[0] if value else 0
        if isinstance(first, (list, tuple)):
            floats = any(isinstance(v, float) for row in value for v in row)
            return (attr.ListListFloat if floats else attr.ListListInt)([list(v) for v in value])
        if isinstance(first, torch.dtype):
            return attr.ListDataType([ge_type(v) for v in value])
        if any(isinstance(v, float) for v in value):
            return attr.ListFloat(list(value))
        kinds = {bool: attr.ListBool, int: attr.ListInt, str: attr.ListStr}
    else:
        first, kinds = value, {bool: attr.Bool, int: attr.Int, float: attr.Float, str: attr.Str}
    if type(first) not in kinds:
        raise TypeError(f"{value!r} of type {type(value).__name__} has no form as attribute")
    return kinds[type(first)](list(value) if isinstance(value, tuple) else value)


def node(
    kind: str,
    inputs: Mapping[str, Any] | None,
    outputs: Sequence[Any] | None,
    attrs: Mapping[str, Any] | None = None,
    node_name: str | None = None,
    dependencies: Sequence[Tensor] | None = None,
) -> Any:
    """Adds a node; see custom_op."""
    where = f"custom op '{kind}'"
    if inputs is not None and not isinstance(inputs, Mapping):
        raise AssertionError(f"{where}: expected inputs as dict, received {type(inputs).__name__}")
    if outputs is not None and not isinstance(outputs, (list, tuple)):
        raise AssertionError(
            f"{where}: expected outputs as list, received {type(outputs).__name__}"
        )
    op = current().add(kind, node_name)
    for name, value in (inputs or {}).items():
        if value is None:
            op.input.append("")
            missing = op.input_desc.add(name=name)
            missing.attr["_is_unfed_optional"].i = 1
            continue
        listed = isinstance(value, (list, tuple))
        for position, one in enumerate(value if listed else [value]):
            if not isinstance(one, Tensor):
                raise AssertionError(
                    f"{where}: expected input '{name}' to be None, a ge.Tensor or a list of them, "
                    f"received {type(one).__name__}"
                )
            op.input.append(one.tensor)
            op.input_desc.add().CopyFrom(one.desc)
            op.input_desc[-1].name = f"{name}{position}" if listed else name
    for dependency in dependencies or ():
        op.input.append(dependency.controller)
    for name, value in (attrs or {}).items():
        if not isinstance(value, attr._Attr):
            allowed = ", ".join(f"ge.attr.{one}" for one in attr.__all__)
            raise AssertionError(
                f"{where}: expected attr '{name}' to be one of {allowed}, received {type(value).__name__}"
            )
        value.merge_to(op.attr[name])
    results: list[Any] = []
    for output in outputs or ():
        if isinstance(output, str):
            op.output_desc.add(name=output)
            results.append(Tensor(op, len(op.output_desc) - 1))
        elif isinstance(output, (tuple, list)) and [type(v) for v in output] == [str, int]:
            first = len(op.output_desc)
            for position in range(output[1]):
                op.output_desc.add(name=f"{output[0]}{position}")
            results.append([Tensor(op, first + i) for i in range(output[1])])
        else:
            raise AssertionError(
                f"{where}: expected each output to be a name or (name, number), received {output!r}"
            )
    if not results:
        return None
    return tuple(results) if len(results) > 1 else results[0]


def absent(desc: Any) -> bool:
    """Whether an input is an optional one that was not given."""
    return isinstance(desc, TensorDescriptor) and "_is_unfed_optional" in desc.attr
