"""What our compilers return to AOTAutograd: output codes of PyTorch, which its cache keeps and loads again.

Of a graph that Inductor compiled, `NpuCompiledFxGraph` keeps Inductor's own output and the `Recipe` that makes a task of
the device of it: loading neither traces nor lowers nor compiles. All other graphs (streams, dumps, eager ones) are an
`NpuOutputCode`, which AOTAutograd's cache keeps only where whole programs are bundled; loading compiles it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._inductor.codecache import FxGraphCache
from torch._inductor.output_code import CompiledFxGraph, OutputCode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._graph_pickler import GraphPickler
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from softnpu import torch_versions
from torchair._calls import logged
from torchair._capture import Captured, CaptureInputs
from torchair._host import operators
from torchair._host.run import HostProgram
from torchair._program_cache import plain_options
from torchair.configs.compiler_config import CompilerConfig, set_by_path
from torchair.inference._gears import Gears

__all__ = ["NpuCompiledFxGraph", "NpuOutputCode", "output_code"]

Run = Callable[[list[Any]], Any]
#: bytes of the tensors that a kept graph holds, at most
_MAX_HELD = 2**20


@dataclasses.dataclass
class Recipe:
    """From Inductor's code to the function that AOTAutograd calls: plain values, and CPU copies of small tensors."""

    device: int
    on_cpu: frozenset[int]
    written: tuple[int, ...]
    held: list[tuple[torch.Tensor, str]]  # the graph's own tensors, and where they are
    operators: list[tuple[str, str]]  # whose host operators the code calls
    options: dict[str, Any] | None  # of TorchAir; None: torch.compile without a backend
    inputs: CaptureInputs | None = None  # of a captured graph
    gears: Gears | None = None

    def run(self, code: Run) -> Run:
        """The function."""
        held = [tensor.to(device) for tensor, device in self.held]
        program: Run = HostProgram(code, self.device, self.on_cpu, held, self.written)
        if self.options is None:
            return program
        if self.gears is not None:
            program = self.gears.guarded(program)
        elif self.inputs is not None:
            config = CompilerConfig()
            for name, value in self.options.items():
                set_by_path(config, name, value)
            program = Captured(program, self.inputs, config)
        return logged(program)


class NpuCompiledFxGraph(CompiledFxGraph):
    """Inductor's output as a task of the device."""

    recipe: Recipe

    @classmethod
    def of(cls, code: CompiledFxGraph, recipe: Recipe, run: Run) -> NpuCompiledFxGraph:
        """From Inductor's output and the function that was made of it."""
        made = object.__new__(cls)
        vars(made).update(vars(code), recipe=recipe, _boxed_call=True)
        made._call(run)
        return made

    def _call(self, run: Run) -> None:
        self.current_callable = run
        self.compiled_fn_runner = self.recursively_apply_fns = None  # Inductor's object has them

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self.current_callable is not None, "post_compile makes a loaded graph callable"
        return self.current_callable(inputs)

    def keep(self, example_inputs: Sequence[Any]) -> None:
        """Writes it beside Inductor's own entry, under a key of its own: AOTAutograd's cache looks it up there."""
        from torch._inductor import config

        key = self._fx_graph_cache_key
        if key is None or not torch_versions.loads_output_code():  # Inductor does not keep it
            return
        with _disable_current_modes():
            digest = hashlib.sha256(pickle.dumps((key, self.recipe))).hexdigest()
        self._fx_graph_cache_key = f"f{digest}"
        if config.fx_graph_cache:
            FxGraphCache._save_graph(self._fx_graph_cache_key, self, example_inputs, True, None)

    def after_deserialization(self, *args: Any) -> str:
        """Loads the code, which calls host operators by their names."""
        for kind, name in self.recipe.operators:
            operators.restore(kind, name)
        return super().after_deserialization(*args)

    def post_compile(
        self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any
    ) -> None:
        """Makes a loaded graph callable."""
        from torch._inductor.utils import BoxedBool

        super().post_compile(
            example_inputs, constants, {**graph_kwargs, "cudagraphs": BoxedBool(False)}
        )
        code = object.__new__(CompiledFxGraph)
        vars(code).update(vars(self))
        with _disable_current_modes():
            self._call(self.recipe.run(code))


def output_code(
    run: Run,
    graph: GraphModule,
    example_inputs: Sequence[Any],
    again: Callable[..., Run],
    config: CompilerConfig | None = None,
    gears: Gears | None = None,
) -> OutputCode:
    """What AOTAutograd gets: of a graph that Inductor compiled, what its cache can keep.

    `again` compiles the graph as it was compiled; without `config` it is torch.compile without a backend.
    """
    program, captured = run, None
    while program is not None and not isinstance(program, HostProgram):
        captured = program.inputs if isinstance(program, Captured) else captured
        program = getattr(program, "program", None)  # type: ignore[assignment]
    code = None if program is None else program.code
    options = None if config is None else plain_options(config)
    if not isinstance(code, CompiledFxGraph) or (config is not None and options is None):
        return NpuOutputCode(run, graph, again)
    assert program is not None
    held = _kept_tensors(program.held)
    if held is None:
        return NpuOutputCode(run, graph, again)
    called = operators.originals(code.source_code)
    recipe = Recipe(
        program.device, program.on_cpu, program.written, held, called, options, captured, gears
    )
    made = NpuCompiledFxGraph.of(code, recipe, run)
    made.keep(example_inputs)
    return made


def _kept_tensors(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, str]] | None:
    """CPU copies of the tensors with their devices; None if they are many or of a special kind."""
    plain = all(type(t) is torch.Tensor and t.layout == torch.strided for t in tensors)
    if not plain or sum(t.nbytes for t in tensors) > _MAX_HELD:
        return None
    with _disable_current_modes():
        return [(t.detach().cpu().clone(), str(t.device)) for t in tensors]


class NpuOutputCode(OutputCode):
    """A graph that takes the list of its inputs; `again` compiles the graph as it was compiled."""

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
