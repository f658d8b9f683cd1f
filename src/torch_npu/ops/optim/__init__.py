"""Optimizer steps in one operator, and the packing of gradient signs."""
