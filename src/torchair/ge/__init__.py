"""torchair.ge: the graph engine's graphs, and what converters build them of; mirrors upstream's torchair.ge.

`convert` turns an ATen graph into one; `interpreter` runs it; `export` writes it as an .air file.
"""

from __future__ import annotations

from torchair.ge import attr, converters
from torchair.ge._types import DataType, Format
from torchair.ge.convert import GeGraph, convert
from torchair.ge.export import dynamo_export
from torchair.ge.graph import Cast, Clone, Const, Tensor, TensorSpec, custom_op
from torchair.ge.registry import has_converter, register_fx_node_ge_converter

__all__ = [
    "Cast",
    "Clone",
    "Const",
    "DataType",
    "Format",
    "GeGraph",
    "Tensor",
    "TensorSpec",
    "attr",
    "convert",
    "converters",
    "custom_op",
    "dynamo_export",
    "has_converter",
    "register_fx_node_ge_converter",
]
