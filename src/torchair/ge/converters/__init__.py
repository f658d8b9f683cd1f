"""Converters of the core ATen operators, one file a family; each file registers its own."""

from torchair.ge.converters import control, elementwise, functionalized, matmul, shape, symbols

__all__ = ["control", "elementwise", "functionalized", "matmul", "shape", "symbols"]
