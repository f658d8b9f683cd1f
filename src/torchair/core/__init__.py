"""torchair.core: what the rest of the package shares."""

from torchair.core import _concrete_graph, utils

__all__ = ["_concrete_graph", "utils"]
