"""A model for deployment: exported as a GE graph, read back, and run to the same numbers.

    python examples/torchair_export.py

`torchair.dynamo_export` writes what ATC compiles on a machine with a card: the graph with its weights (`export.air`)
and the same graph to read (`dynamo.pbtxt`). The batch stays open (`dynamic=True`). The interpreter of GE graphs then
runs the file node by node, which is also a way to look into it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import torch_npu
import torchair
from torchair.ge.interpreter import Interpreter, load


class Block(nn.Module):
    """A gated MLP with this package's fused operators."""

    def __init__(self, width: int = 16, hidden: int = 24):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, 2 * hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = torch_npu.npu_rms_norm(x, self.norm)[0]
        return x + self.down(torch_npu.npu_swiglu(self.up(normed)))


def main(folder: str | None = None) -> float:
    """Exports and reads back; returns the largest difference."""
    where = Path(folder or tempfile.mkdtemp(prefix="export-"))
    model = Block().npu()
    torchair.dynamo_export(
        torch.randn(4, 16, device="npu"), model=model, export_path=str(where), dynamic=True
    )
    print("files  ", sorted(file.name for file in where.iterdir()))

    graph = load(str(where / "export.air"))
    print("nodes  ", dict(Counter(op.type for op in graph.op)))
    inputs = [op for op in graph.op if op.type == "Data"]
    print("inputs ", {op.name: list(op.output_desc[0].shape.dim) for op in inputs})

    largest = 0.0
    for rows in (4, 7):  # another batch than the exported one
        x = torch.randn(rows, 16, device="npu")
        given = [x if op.output_desc[0].shape.dim else rows for op in inputs]
        (y,) = Interpreter(graph)(*given)
        largest = max(largest, (y - model(x)).abs().max().item())
    print("largest difference between the exported graph and the model:", largest)
    return largest


if __name__ == "__main__":
    main()
