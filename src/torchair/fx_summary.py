"""Where upstream has the summary of FX graphs; see torchair._summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from torchair._summary import summarize

__all__: list[str] = []


def _summarize_fx_graph(graph: GraphModule, example_inputs: Sequence[Any], csv_file: str) -> None:
    """Writes the table of the graph's operators to a file."""
    from torchair.compiler import _fake_mode

    summarize(graph, example_inputs, _fake_mode(example_inputs), csv_file)
