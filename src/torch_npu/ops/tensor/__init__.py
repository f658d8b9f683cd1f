"""Shapes, layouts, types and plain reductions of tensors."""
