"""Upstream's package for captured graphs, as far as programs reach into it."""

from torchair._acl_concrete_graph import fx2acl_converter, replace_stream_event

__all__ = ["fx2acl_converter", "replace_stream_event"]
