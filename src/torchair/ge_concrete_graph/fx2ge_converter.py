"""Old name of torchair._ge_concrete_graph.fx2ge_converter."""

from torchair._ge_concrete_graph.fx2ge_converter import (
    Converter,
    declare_supported,
    register_fx_node_ge_converter,
)

__all__ = ["Converter", "declare_supported", "register_fx_node_ge_converter"]
