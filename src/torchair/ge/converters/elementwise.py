"""Elementwise operators: a table of the graph engine's names, and the casts that its equal input types need."""

from __future__ import annotations

from typing import Any

import torch

from torchair.ge import attr
from torchair.ge._types import ge_type, torch_type
from torchair.ge.graph import Cast, Const, Tensor, TensorSpec, node
from torchair.ge.registry import register_fx_node_ge_converter

aten = torch.ops.aten
UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "bitwise_not": "Invert", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf",
    "erfc": "Erfc", "exp": "Exp", "expm1": "Expm1", "floor": "Floor", "isfinite": "IsFinite", "isinf": "IsInf",
    "isnan": "IsNan", "log": "Log", "log1p": "Log1p", "logical_not": "LogicalNot", "mish": "Mish", "neg": "Neg",
    "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round", "rsqrt": "Rsqrt", "sigmoid": "Sigmoid",
    "sign": "Sign", "silu": "Swish", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "square": "Square",
    "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "RealDiv", "maximum": "Maximum", "minimum": "Minimum",
    "pow": "Pow", "remainder": "FloorMod", "atan2": "Atan2", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor", "logical_and": "LogicalAnd", "logical_or": "LogicalOr",
}  # fmt: skip
COMPARISON = {
    "eq": "Equal", "ne": "NotEqual", "lt": "Less", "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual",
}  # fmt: skip
_KEEPS_TYPE = {
    "abs",
    "neg",
    "sign",
    "floor",
    "ceil",
    "round",
    "relu",
    "bitwise_not",
    "square",
    "logical_not",
}
_KEEPS_TYPE |= {"isfinite", "isinf", "isnan"}


def typed(value: Any, dtype: int) -> Tensor:
    """The value as a tensor of that type."""
    if not isinstance(value, Tensor):
        return Const(value, dtype=dtype)
    if value.dtype == dtype:
        return value
    shape = value.meta
    made = Cast(value, dst_type=dtype)
    if isinstance(shape, torch.Tensor):
        made.set_meta(shape.to(torch_type(dtype)))
    return made


def _unary(name: str, kind: str) -> Any:
    def convert(self: Tensor, *, meta_outputs: TensorSpec) -> Any:
        x = self if name in _KEEPS_TYPE else typed(self, meta_outputs.dtype)
        return node(kind, {"x": x}, ["y"])

    return convert


def _common(self: Any, other: Any) -> int:
    metas = [v.meta if isinstance(v, Tensor) else v for v in (self, other)]
    if not any(isinstance(v, torch.Tensor) for v in metas):
        return ge_type(torch.int64)
    return ge_type(torch.result_type(*metas))


def _binary(kind: str, comparison: bool) -> Any:
    def convert(
        self: Any, other: Any, *, meta_outputs: TensorSpec, alpha: Any = 1, **rest: Any
    ) -> Any:
        if rest or (alpha != 1):
            return NotImplemented
        logical = kind.startswith("Logical")
        dtype = _common(self, other) if comparison or logical else meta_outputs.dtype
        return node(kind, {"x1": typed(self, dtype), "x2": typed(other, dtype)}, ["y"])

    return convert


def _register() -> None:
    for name, kind in UNARY.items():
        packet = getattr(aten, name)
        if "default" in packet.overloads():
            register_fx_node_ge_converter(packet.default)(_unary(name, kind))
    for name, kind in (BINARY | COMPARISON).items():
        packet = getattr(aten, name)
        for overload in {"Tensor", "Scalar", "default", "Tensor_Tensor", "Tensor_Scalar"} & set(
            packet.overloads()
        ):
            target = getattr(packet, overload)
            register_fx_node_ge_converter(target)(_binary(kind, name in COMPARISON))


_register()


@register_fx_node_ge_converter(aten.gelu.default)
def _gelu(self: Tensor, *, approximate: str = "none") -> Any:
    return node("GeluV2", {"x": self}, ["y"], {"approximate": attr.Str(approximate)})


@register_fx_node_ge_converter(aten.where.self)
def _where(condition: Tensor, self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Any:
    chosen = {"x1": typed(self, meta_outputs.dtype), "x2": typed(other, meta_outputs.dtype)}
    return node("Select", {"condition": condition, **chosen}, ["y"])


@register_fx_node_ge_converter(aten.clone.default)
def _clone(self: Tensor, *, memory_format: Any = None) -> Any:
    if memory_format not in (None, torch.preserve_format):
        return NotImplemented
    return node("TensorMove", {"x": self}, ["y"])


@register_fx_node_ge_converter(aten.copy_.default)
def _copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    from torchair.ge.graph import current

    same_type = typed(src, self.dtype)
    made = node("Assign", {"ref": self, "value": same_type}, ["ref"])
    current().kept.append(made.node.name)
    return made
