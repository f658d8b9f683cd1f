"""Symbolic integers: Python's operators on sizes, and the size of a tensor."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from torchair.ge import attr
from torchair.ge._types import DataType
from torchair.ge.converters.elementwise import COMPARISON, typed
from torchair.ge.graph import Const, Tensor, TensorSpec, node
from torchair.ge.registry import aten_type, register_fx_node_ge_converter

#: what each is as an ATen operator
_BINARY = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floor_divide",
    operator.truediv: "div", operator.mod: "remainder", operator.pow: "pow", torch.sym_max: "maximum",
    torch.sym_min: "minimum",
}  # fmt: skip
_COMPARISON = {getattr(operator, name): name for name in COMPARISON}


def _binary(python: Any, kind: str) -> Any:
    def convert(self: Any, other: Any, *, meta_outputs: TensorSpec | None) -> Any:
        if not isinstance(self, Tensor) and not isinstance(other, Tensor):
            return python(self, other)
        dtype = DataType.DT_INT64
        if python in _BINARY and meta_outputs is not None and python is not operator.truediv:
            dtype = meta_outputs.dtype
        elif python is operator.truediv:
            dtype = DataType.DT_FLOAT
        return node(kind, {"x1": typed(self, dtype), "x2": typed(other, dtype)}, ["y"])

    return convert


for _python, _name in (_BINARY | _COMPARISON).items():
    register_fx_node_ge_converter(_python)(_binary(_python, aten_type(_name)))


@register_fx_node_ge_converter(operator.neg)
def _neg(self: Any) -> Any:
    return node("Neg", {"x": self}, ["y"]) if isinstance(self, Tensor) else -self


@register_fx_node_ge_converter(torch.sym_float)
def _float(self: Any, *, meta_outputs: Any) -> Any:
    return typed(self, DataType.DT_FLOAT) if isinstance(self, Tensor) else float(self)


def _rounded(python: Any, kind: str) -> Any:
    def convert(self: Any) -> Any:
        if not isinstance(self, Tensor):
            return python(self)
        return typed(node(kind, {"x": self}, ["y"]), DataType.DT_INT64)

    return convert


register_fx_node_ge_converter(math.floor)(_rounded(math.floor, "Floor"))
register_fx_node_ge_converter(math.ceil)(_rounded(math.ceil, "Ceil"))


@register_fx_node_ge_converter(operator.getitem)
def _getitem(values: Any, index: int) -> Any:
    return values[index]


@register_fx_node_ge_converter(torch.ops.aten.sym_size.int)
def _size(self: Tensor, dim: int) -> Any:
    shape = node("Shape", {"x": self}, ["y"], {"dtype": attr.Int(DataType.DT_INT64)})
    shape.set_meta(torch.empty(self.rank, dtype=torch.int64, device="meta"))
    shape.desc.device_type = "CPU"
    inputs = {"x": shape, "indices": Const(dim % self.rank, dtype=DataType.DT_INT64)}
    inputs["axis"] = Const(0, dtype=DataType.DT_INT64)
    return node("GatherV2", inputs, ["y"], {"batch_dims": attr.Int(0)})
