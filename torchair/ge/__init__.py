"""torchair.ge: the graph engine's graphs. `convert` turns an ATen graph into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

__all__ = ["GeGraph", "convert"]


class GeGraph:
    """A converted graph."""

    def __init__(self, gm: GraphModule, name: str):
        self.gm, self.name = gm, name

    def dump(self, path: str) -> None:
        """Writes the graph; the suffix of the path says how."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.gm.print_readable(print_output=False))


def convert(gm: GraphModule, example_inputs: Sequence[Any], *, config: Any, name: str) -> GeGraph:
    """The graph engine's form of the graph."""
    return GeGraph(gm, name)
