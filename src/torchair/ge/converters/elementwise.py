"""Elementwise operators: one node each, with the casts that its equal input types need."""

from __future__ import annotations

from typing import Any

import torch

from torchair.ge import attr
from torchair.ge._types import ge_type, torch_type
from torchair.ge.graph import Cast, Const, Tensor, TensorSpec, node
from torchair.ge.registry import aten_type, register_fx_node_ge_converter

aten = torch.ops.aten
UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "erf",
    "erfc", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log1p", "logical_not", "mish", "neg",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "sqrt", "square", "tan",
    "tanh",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "pow", "remainder", "atan2", "bitwise_and", "bitwise_or",
    "bitwise_xor", "logical_and", "logical_or",
)  # fmt: skip
COMPARISON = ("eq", "ne", "lt", "le", "gt", "ge")
_KEEPS_TYPE = (
    "abs", "bitwise_not", "ceil", "floor", "isfinite", "isinf", "isnan", "logical_not", "neg", "relu", "round",
    "sign", "square",
)  # fmt: skip


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
    for name in UNARY:
        packet = getattr(aten, name)
        if "default" in packet.overloads():
            register_fx_node_ge_converter(packet.default)(_unary(name, aten_type(name)))
    for name in BINARY + COMPARISON:
        packet = getattr(aten, name)
        for overload in {"Tensor", "Scalar", "default", "Tensor_Tensor", "Tensor_Scalar"} & set(
            packet.overloads()
        ):
            target = getattr(packet, overload)
            register_fx_node_ge_converter(target)(_binary(aten_type(name), name in COMPARISON))


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
