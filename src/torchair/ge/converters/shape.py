"""Operators that change shapes, join, pick, and reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchair.ge import attr
from torchair.ge._types import DataType
from torchair.ge.converters.elementwise import typed
from torchair.ge.graph import Const, Tensor, TensorSpec, node
from torchair.ge.registry import aten_type, pack, register_fx_node_ge_converter

aten = torch.ops.aten


def integers(values: Sequence[Any]) -> Tensor:
    """A list of integers as a tensor; symbolic ones are packed in the graph."""
    if any(isinstance(v, Tensor) for v in values):
        return pack(values)
    return Const(list(values), dtype=DataType.DT_INT64)


@register_fx_node_ge_converter(aten.view.default)
@register_fx_node_ge_converter(aten.reshape.default)
def _reshape(self: Tensor, size: Sequence[Any]) -> Any:
    attrs = {"axis": attr.Int(0), "num_axes": attr.Int(-1)}
    return node("Reshape", {"x": self, "shape": integers(size)}, ["y"], attrs)


@register_fx_node_ge_converter(aten.permute.default)
def _permute(self: Tensor, dims: Sequence[int]) -> Any:
    perm = [d % self.rank for d in dims]
    return node("Transpose", {"x": self, "perm": integers(perm)}, ["y"])


@register_fx_node_ge_converter(aten.t.default)
def _t(self: Tensor) -> Any:
    return _permute(self, list(range(self.rank))[::-1])


@register_fx_node_ge_converter(aten.transpose.int)
def _transpose(self: Tensor, dim0: int, dim1: int) -> Any:
    perm = list(range(self.rank))
    if perm:
        perm[dim0], perm[dim1] = perm[dim1], perm[dim0]
    return _permute(self, perm)


@register_fx_node_ge_converter(aten.unsqueeze.default)
def _unsqueeze(self: Tensor, dim: int) -> Any:
    return node("Unsqueeze", {"x": self}, ["y"], {"axes": attr.ListInt([dim % (self.rank + 1)])})


@register_fx_node_ge_converter(aten.expand.default)
def _expand(self: Tensor, size: Sequence[Any], *, implicit: bool = False) -> Any:
    return node("Expand", {"x": self, "shape": integers(size)}, ["y"])


@register_fx_node_ge_converter(aten.cat.default)
def _cat(tensors: Sequence[Tensor], dim: int = 0, *, meta_outputs: TensorSpec) -> Any:
    parts = [typed(one, meta_outputs.dtype) for one in tensors]
    inputs = {"x": parts, "concat_dim": Const(dim, dtype=DataType.DT_INT64)}
    return node("ConcatV2", inputs, ["y"], {"N": attr.Int(len(parts))})


@register_fx_node_ge_converter(aten.embedding.default)
def _embedding(weight: Tensor, indices: Tensor, *rest: Any, **options: Any) -> Any:
    inputs = {"x": weight, "indices": indices, "axis": Const(0, dtype=DataType.DT_INT64)}
    attrs = {"batch_dims": attr.Int(0), "negative_index_support": attr.Bool(False)}
    return node("GatherV2", inputs, ["y"], attrs)


@register_fx_node_ge_converter(aten.index_select.default)
def _index_select(self: Tensor, dim: int, index: Tensor) -> Any:
    if self.rank == 0 or index.rank == 0:
        return NotImplemented
    inputs = {"x": self, "indices": index, "axis": Const(dim, dtype=DataType.DT_INT64)}
    attrs = {"batch_dims": attr.Int(0), "negative_index_support": attr.Bool(False)}
    return node("GatherV2", inputs, ["y"], attrs)


@register_fx_node_ge_converter(aten.gather.default)
def _gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    return node("GatherElements", {"x": self, "index": index}, ["y"], {"dim": attr.Int(dim)})


def _reduction(kind: str) -> Any:
    def convert(
        self: Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        meta_outputs: TensorSpec,
        dtype: Any = None,
    ) -> Any:
        dims = [dim] if isinstance(dim, int) else list(dim or range(self.rank))
        inputs = {"x": typed(self, meta_outputs.dtype), "axes": integers(dims)}
        return node(kind, inputs, ["y"], {"keep_dims": attr.Bool(keepdim)})

    return convert


for _name, _overload in (
    ("sum", "default"), ("sum", "dim_IntList"), ("mean", "default"), ("mean", "dim"), ("amax", "default"),
    ("amin", "default"),
):  # fmt: skip
    _target = getattr(getattr(aten, _name), _overload)
    register_fx_node_ge_converter(_target)(_reduction(aten_type(_name)))
