"""Where programs for older versions of TorchAir import register_fx_node_ge_converter from."""

from torchair.ge.registry import register_fx_node_ge_converter

__all__ = ["register_fx_node_ge_converter"]
