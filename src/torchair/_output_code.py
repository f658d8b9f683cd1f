"""What our compiler returns to AOTAutograd: an OutputCode of PyTorch, which its cache can keep and load again.

Kept is the ATen graph with the options; loading it compiles again what was compiled, without tracing the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._graph_pickler import GraphPickler
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from softnpu import torch_versions

__all__ = ["NpuOutputCode"]

Run = Callable[[list[Any]], Any]


class NpuOutputCode(OutputCode):
    """A compiled graph that takes the list of its inputs; `again` compiles the graph as it was compiled."""

    def __init__(self, run: Run, graph: GraphModule, again: Callable[..., Run]):
        self._boxed_call = True  # of the object: wrappers copy what it has
        self.run: Run | None = run
        self.graph: GraphModule | None = graph
        self.again = again
        self.kept: bytes | None = None

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self.run is not None, "post_compile makes a loaded graph callable"
        return self.run(inputs)  # type: ignore[arg-type]  # boxed: the list is emptied

    def __getattr__(self, name: str) -> Any:
        run = self.__dict__.get("run")
        if run is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(run, name)

    def prepare_for_serialization(self) -> None:
        """Turns the graph into bytes; called on a copy of the object that runs."""
        assert self.graph is not None
        self.kept = GraphPickler.dumps(self.graph, *torch_versions.pickler_options())
        self.run = self.graph = None

    def post_compile(
        self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any
    ) -> None:
        """Compiles a loaded graph; nothing to do for one that was just compiled."""
        if self.run is not None:
            return
        assert self.kept is not None
        mode = detect_fake_mode(example_inputs) or FakeTensorMode(shape_env=ShapeEnv())
        graph = GraphPickler.loads(self.kept, mode)
        assert isinstance(graph, torch.fx.GraphModule)
        graph.recompile()
        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        self.graph, self.run = graph, self.again(graph, inputs)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Triton's kernels are no part of it."""
