"""What a compilation leaves to look at: TORCH_COMPILE_DEBUG's folder with the graph after each pass.

torch_compile_debug/run_<time>-pid_<pid>/torchair/
    debug.log
    model__<n>/dynamo_out_graph.txt
    model__<n>/<forward|backward>/000_aot_<phase>_graph.txt, 001_aot_<phase>_graph_after_<pass>.txt, ...
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from torchair.core.utils import debug_wanted, log_to_file

_models = itertools.count()


def begin_model(gm: GraphModule) -> str | None:
    """Takes a folder for a graph that dynamo found, and writes the graph down; None if nobody wants it."""
    if not debug_wanted():
        return None
    from torch._dynamo.utils import get_debug_dir

    log_to_file()
    folder = os.path.join(get_debug_dir(), "torchair", f"model__{next(_models)}")
    os.makedirs(folder, exist_ok=True)
    _write(folder, "dynamo_out_graph.txt", gm)
    return folder


class Observer:
    """Writes the graph of one phase after each pass, numbered in order."""

    def __init__(self, model: str | None, phase: str, example_inputs: Sequence[Any] = ()):
        self.phase = phase
        self.example_inputs = example_inputs
        self.folder = os.path.join(model, phase) if model is not None else None
        self.count = itertools.count()
        if self.folder is not None:
            os.makedirs(self.folder, exist_ok=True)

    def began(self, gm: GraphModule) -> None:
        self.dump_gm(gm, "graph")

    def passed(self, name: str, gm: GraphModule) -> None:
        self.dump_gm(gm, f"graph_after_{name}")

    def path(self, name: str) -> str | None:
        """The next numbered file of this phase, for what is no FX graph."""
        if self.folder is None:
            return None
        return os.path.join(self.folder, f"{next(self.count):03d}_{name}")

    def dump_gm(self, gm: GraphModule, file_name: str) -> None:
        """Called with every graph; programs replace it, by upstream's name, to look at them."""
        if self.folder is not None:
            name = f"{next(self.count):03d}_aot_{self.phase}_{file_name}.txt"
            _write(self.folder, name, gm)


def _write(folder: str, name: str, gm: GraphModule) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(gm.print_readable(print_output=False, include_stride=True, include_device=True))
