"""Runs a GE graph node by node, from the format alone: the meaning of each type of node is one line of a table.

For reading, debugging and tests; `load` reads what `dynamo_export` and the txt dump wrote.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from google.protobuf import text_format

from torchair.ge import attr
from torchair.ge._types import from_proto, torch_type
from torchair.ge.graph import absent
from torchair.ge.ir import GraphDef, ModelDef
from torchair.ge.registry import TORCH_OPERATOR, aten_type

Kernel = Callable[..., Any]


def _dims(axes: torch.Tensor) -> list[int]:
    return axes.reshape(-1).tolist()


def _matmul(x1: Any, x2: Any, bias: Any, t1: bool, t2: bool) -> Any:
    y = torch.matmul(x1.mT if t1 else x1, x2.mT if t2 else x2)
    return y if bias is None else y + bias


def _gather(x: torch.Tensor, indices: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    dim = int(axis) % x.dim()
    picked = x.index_select(dim, indices.reshape(-1).to(x.device))
    return picked.reshape(x.shape[:dim] + indices.shape + x.shape[dim + 1 :])


#: type of a node -> its results, of its inputs and attributes by name
KERNELS: dict[str, Kernel] = {
    "Cast": lambda x, dst_type: x.to(torch_type(dst_type)),
    "TensorMove": lambda x: x.clone(),
    "Identity": lambda x: x,
    "Select": lambda condition, x1, x2: torch.where(condition, x1, x2),
    "GeluV2": lambda x, approximate: F.gelu(x, approximate=approximate),
    "MatMulV2": lambda x1, x2, bias, offset_w, transpose_x1, transpose_x2, offset_x: _matmul(
        x1, x2, bias, transpose_x1, transpose_x2
    ),
    "BatchMatMulV2": lambda x1, x2, bias, offset_w, adj_x1, adj_x2, offset_x: _matmul(
        x1, x2, bias, adj_x1, adj_x2
    ),
    "SoftmaxV2": lambda x, axes, half_to_float: torch.softmax(
        x, axes[0], torch.float32 if half_to_float else None
    ),
    "LogSoftmaxV2": lambda logits, axes: torch.log_softmax(logits, axes[0]),
    "LayerNormV4": lambda x, normalized_shape, gamma, beta, epsilon: torch.native_layer_norm(
        x, _dims(normalized_shape), gamma, beta, epsilon
    ),
    "Reshape": lambda x, shape, axis, num_axes: x.reshape(_dims(shape)),
    "Transpose": lambda x, perm: x.permute(_dims(perm)),
    "Unsqueeze": lambda x, axes: x.unsqueeze(axes[0]),
    "Expand": lambda x, shape: x.expand(_dims(shape)),
    "ConcatV2": lambda x, concat_dim, N: torch.cat(x, int(concat_dim)),
    "GatherV2": lambda x, indices, axis, **options: _gather(x, indices, axis),
    "GatherElements": lambda x, index, dim: x.gather(dim, index),
    "ReduceSum": lambda x, axes, keep_dims: x.sum(_dims(axes), keep_dims, dtype=x.dtype),
    "ReduceMean": lambda x, axes, keep_dims: x.mean(_dims(axes), keep_dims),
    "ReduceMax": lambda x, axes, keep_dims: x.amax(_dims(axes), keep_dims),
    "ReduceMin": lambda x, axes, keep_dims: x.amin(_dims(axes), keep_dims),
    "Shape": lambda x, dtype: torch.tensor(x.shape, dtype=torch_type(dtype)),
    "Pack": lambda x, N, axis: torch.stack([one.cpu() for one in x], axis),
    "Assign": lambda ref, value: ref.copy_(value),
}


@functools.cache
def elementwise() -> dict[str, str]:
    """Type of a node -> the function of PyTorch that it is, of its inputs in order."""
    from torchair.ge.converters.elementwise import BINARY, COMPARISON, UNARY

    return {aten_type(name): name for name in (*UNARY, *BINARY, *COMPARISON, "floor_divide")}


class Interpreter:
    """`Interpreter(graph)(*inputs)` gives the graph's outputs; inputs are as the Data nodes' indices say.

    Args:
        proto: a GraphDef.
        kernels: functions for further types of nodes: of inputs and attributes by name.
        device: where constants that the graph has on the device are put.
        folder: where files of external weights are, if not where the graph says.
    """

    def __init__(
        self,
        proto: Any,
        kernels: Mapping[str, Kernel] | None = None,
        device: str = "npu",
        folder: str | None = None,
    ):
        self.proto, self.kernels = proto, {**KERNELS, **(kernels or {})}
        self.device, self.folder = device, folder

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        values: dict[str, Any] = {"": None}
        for op in self.proto.op:
            sources = [one for one in op.input if not one.endswith(":-1")]
            given = [values[one] for one in sources]
            if op.type == "NetOutput":
                return given
            results = self._run(op, given, inputs)
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            for index, one in enumerate(results):
                values[f"{op.name}:{index}"] = one
        raise ValueError(f"graph {self.proto.name} has no NetOutput")

    def _run(self, op: Any, given: Sequence[Any], inputs: Sequence[Any]) -> Any:
        if op.type in ("Data", "RefData"):
            value = inputs[op.attr["index"].i]
            return value if isinstance(value, torch.Tensor) else torch.tensor(value)
        if op.type == "Const":
            stored = op.attr["value"].t
            return self._constant(stored.data, stored.desc, op.output_desc[0])
        if op.type == "FileConstant":
            path = op.attr["file_path"].s.decode()
            if self.folder is not None:
                path = os.path.join(self.folder, os.path.basename(path))
            with open(path, "rb") as file:
                return self._constant(file.read(), op.output_desc[0], op.output_desc[0])
        if op.type == "If":
            branch = op.attr["then_branch" if given[0] else "else_branch"].g
            return Interpreter(branch, self.kernels, self.device, self.folder)(*given[1:])
        arguments = _named(op, given)
        for key, value in op.attr.items():
            read = attr.read(value)
            if read is not None and not key.startswith(("_", "nn_module_stack")):
                arguments[key] = read.value
        if TORCH_OPERATOR in op.attr:
            return _call(op, arguments)
        if op.type in self.kernels:
            return self.kernels[op.type](**arguments)
        if op.type in elementwise():
            name = elementwise()[op.type]
            return (getattr(torch, name, None) or getattr(F, name))(*arguments.values())
        raise NotImplementedError(
            f"node {op.name}: the interpreter has no kernel for type {op.type}"
        )

    def _constant(self, data: bytes, desc: Any, output: Any) -> torch.Tensor:
        value = constant(data, desc)
        return value.to(self.device) if output.device_type == "NPU" else value


def constant(data: bytes, desc: Any) -> torch.Tensor:
    """The host tensor that the bytes are."""
    dtype = torch_type(from_proto(desc.dtype))
    value = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return value.reshape(list(desc.shape.dim))


def dynamic_inputs(op: Any) -> tuple[str, ...]:
    """The inputs of a node that are lists: in the graph they are x0, x1, ..."""
    if TORCH_OPERATOR in op.attr:
        arguments = _operator(op)._schema.arguments
        return tuple(a.name for a in arguments if "List[" in str(a.type))
    return {"Pack": ("x",), "ConcatV2": ("x",), "If": ("input",)}.get(op.type, ())


def _named(op: Any, given: Sequence[Any]) -> dict[str, Any]:
    """Inputs by name; x0, x1, ... of a dynamic input are a list x."""
    lists = dynamic_inputs(op)
    named: dict[str, Any] = {}
    for desc, value in zip(op.input_desc, given, strict=True):
        stem = desc.name.rstrip("0123456789")
        if stem in lists and stem != desc.name and not absent(desc):
            named.setdefault(stem, []).append(value)
        else:
            named[desc.name] = value
    return named


def _operator(op: Any) -> Any:
    library, name, overload = op.attr[TORCH_OPERATOR].s.decode().split(".")
    return getattr(getattr(getattr(torch.ops, library), name), overload)


def _call(op: Any, arguments: dict[str, Any]) -> Any:
    """Calls the torch operator that the node was made from."""
    operator = _operator(op)
    positional, by_name = [], {}
    for argument in operator._schema.arguments:
        kind = str(argument.real_type)
        if argument.name in arguments:
            value = _python(arguments[argument.name], kind)
        elif argument.has_default_value():
            value = argument.default_value
        else:
            value = [] if kind.startswith("List[") else None
        mask = (
            op.attr[f"_given_{argument.name}"].list.b
            if f"_given_{argument.name}" in op.attr
            else None
        )
        if mask:
            rest = iter(value)
            value = [next(rest) if here else None for here in mask]
        if argument.kwarg_only:
            by_name[argument.name] = value
        else:
            positional.append(value)
    return operator(*positional, **by_name)


def _python(value: Any, kind: str) -> Any:
    """An attribute, or a tensor that stands for numbers, as the operator's schema wants it."""
    if value is None:
        return None
    if "Tensor" not in kind and isinstance(value, torch.Tensor):
        return value.tolist()
    if "ScalarType" in kind:
        return torch_type(value)
    if "Layout" in kind or "MemoryFormat" in kind:
        return getattr(torch, value.removeprefix("torch."))
    if "number" in kind and isinstance(value, str):
        return complex(value)
    return value


def load(path: str) -> Any:
    """The GraphDef in an .air file (a model's first graph) or in a txt dump."""
    if path.endswith(".txt"):
        with open(path, encoding="utf-8") as file:
            return text_format.Parse(file.read(), GraphDef())
    model = ModelDef()
    with open(path, "rb") as file:
        model.ParseFromString(file.read())
    return model.graph[0]
