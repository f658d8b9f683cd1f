"""Products, and the norms and softmax of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair.ge import attr
from torchair.ge.graph import Tensor, node
from torchair.ge.registry import register_fx_node_ge_converter

aten = torch.ops.aten


def _matmul(x1: Tensor, x2: Tensor, bias: Tensor | None = None) -> Any:
    inputs = {"x1": x1, "x2": x2, "bias": bias, "offset_w": None}
    attrs = {
        "transpose_x1": attr.Bool(False),
        "transpose_x2": attr.Bool(False),
        "offset_x": attr.Int(0),
    }
    return node("MatMulV2", inputs, ["y"], attrs)


@register_fx_node_ge_converter(aten.mm.default)
def _mm(self: Tensor, mat2: Tensor) -> Any:
    return _matmul(self, mat2)


@register_fx_node_ge_converter(aten.addmm.default)
def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if (beta, alpha) != (1, 1) or self.rank != 1:
        return NotImplemented
    return _matmul(mat1, mat2, self)


@register_fx_node_ge_converter(aten.bmm.default)
def _bmm(self: Tensor, mat2: Tensor) -> Any:
    attrs = {"adj_x1": attr.Bool(False), "adj_x2": attr.Bool(False), "offset_x": attr.Int(0)}
    inputs = {"x1": self, "x2": mat2, "bias": None, "offset_w": None}
    return node("BatchMatMulV2", inputs, ["y"], attrs)


@register_fx_node_ge_converter(aten._softmax.default)
def _softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    attrs = {"axes": attr.ListInt([dim]), "half_to_float": attr.Bool(half_to_float)}
    return node("SoftmaxV2", {"x": self}, ["y"], attrs)


@register_fx_node_ge_converter(aten._log_softmax.default)
def _log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    if half_to_float:
        return NotImplemented
    return node("LogSoftmaxV2", {"logits": self}, ["logsoftmax"], {"axes": attr.ListInt([dim])})


@register_fx_node_ge_converter(aten.native_layer_norm.default)
def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> Any:
    from torchair.ge.converters.shape import integers

    inputs = {"x": input, "normalized_shape": integers(normalized_shape), "gamma": weight}
    attrs = {"epsilon": attr.Float(eps)}
    return node("LayerNormV4", {**inputs, "beta": bias}, ["y", "mean", "rstd"], attrs)
