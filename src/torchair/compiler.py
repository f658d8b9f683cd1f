"""From a graph that dynamo found to a function on npu tensors: get_npu_backend, get_compiler, the registered backends.

dynamo -> AOTAutograd (functional ATen graphs, forward and backward) -> passes -> the graph engine's form for dumps and
export (torchair.ge) -> host code by Inductor (torchair._host), captured and replayed in mode npugraph_ex.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torch_npu import _plan
from torchair._calls import boxed, logged
from torchair._capture import Captured, CaptureInputs
from torchair._code import CompiledFxGraph
from torchair._dump import CaptureDump, DataDump, EngineDump
from torchair._eager import Eager, capturable, needs_streams
from torchair._graph_dump import dump_code, engine_graph
from torchair._host.run import compile_on_host, cpu_outputs, npu_devices
from torchair._observe import Observer, begin_model
from torchair._summary import summarize
from torchair.configs.compiler_config import CompilerConfig, check_support
from torchair.core.utils import log_to_file, logger
from torchair.inference import _gears
from torchair.scope._attributes import attributes_of

__all__ = ["NpuFxCompiler", "get_compiler", "get_npu_backend"]

_graph_ids = itertools.count(1)


def next_graph_id() -> int:
    """The number of the next graph of this process."""
    return next(_graph_ids)


class NpuFxCompiler:
    """Compiles one ATen graph; an instance serves any number of them, as `fw_compiler` of AOTAutograd or alone."""

    def __init__(self, config: CompilerConfig, **flags: Any):
        self.config = config
        self.flags = flags  # of compile_graph

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> CompiledFxGraph:
        """A function of the graph's inputs that returns its outputs."""
        return self._get_compiled_gm(gm, example_inputs)

    def _get_compiled_gm(self, gm: GraphModule, example_inputs: Sequence[Any]) -> CompiledFxGraph:
        """The step that programs wrap by upstream's name, to keep the graph's code."""
        run = compile_graph(gm, example_inputs, self.config, **self.flags)
        made = CompiledFxGraph(
            lambda *inputs: run(list(inputs)), self.config, getattr(run, "graph", None)
        )
        made.run = run
        return made


def get_compiler(compiler_config: CompilerConfig | None = None) -> NpuFxCompiler:
    """The compiler alone, for backends of one's own: `aot_module_simplified(gm, inputs, fw_compiler=...)`.

    Args:
        compiler_config: options, by default CompilerConfig().
    """
    config = CompilerConfig() if compiler_config is None else compiler_config
    check_support(config)
    return NpuFxCompiler(config)


def get_npu_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """A backend for torch.compile.

    Args:
        compiler_config: options, by default CompilerConfig().
        custom_decompositions: operators to take apart before compilation, as torch._decomp has them.
    """
    config = CompilerConfig() if compiler_config is None else compiler_config
    if not isinstance(config, CompilerConfig):
        raise TypeError(
            f"get_npu_backend: compiler_config must be a CompilerConfig, received {type(config).__name__}"
        )
    log_to_file()
    check_support(config)
    return functools.partial(
        npu_backend, compiler_config=config, decompositions=dict(custom_decompositions or {})
    )


def npu_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    compiler_config: CompilerConfig | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """Compiles what dynamo found, forward and backward; torch.compile(backend="npu") calls it."""
    config = CompilerConfig() if compiler_config is None else compiler_config
    return aot_compile(gm, example_inputs, config, decompositions or {})


def aot_compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    decompositions: dict[Any, Callable[..., Any]],
    compile_one: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """AOTAutograd around `compile_one` (by default `NpuFxCompiler`), once a phase."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
    from torch._functorch.partitioners import default_partition
    from torch._inductor.output_code import OutputCode

    from torchair._output_code import output_code
    from torchair._program_cache import caching, tagged

    model = begin_model(gm)
    gears = _gears.of_inputs(example_inputs, config)

    def phase(name: str, **flags: Any) -> Callable[..., Any]:
        def compile_phase(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            options = {"phase": name, "model": model, "gears": gears, **flags}
            if compile_one is not None:
                return compile_one(graph, inputs, config, **options)
            made = NpuFxCompiler(config, **options)._get_compiled_gm(graph, inputs)
            again = functools.partial(compile_graph, config=config, **options)
            own = gears if not flags.get("is_backward") else None
            return output_code(made.run or boxed(made), graph, inputs, again, config, own)

        if compile_one is not None:
            return compile_phase
        return SerializableAOTDispatchCompiler(OutputCode, tagged(compile_phase))

    clones_mutations = config.debug.aclgraph.disable_reinplace_input_mutated_ops_pass
    seen = None if compile_one is None and _unwrapped() else "its graphs are looked at"
    with caching(gm, config, decompositions, gears, seen):
        backend = aot_autograd(
            fw_compiler=phase("forward"),
            bw_compiler=phase("backward", is_backward=True),
            inference_compiler=phase("forward", is_inference=True),
            decompositions=decompositions,
            partition_fn=default_partition,
            keep_inference_input_mutations=bool(
                config.experimental_config.keep_inference_input_mutations
            )
            and not clones_mutations,
        )
        return backend(gm, example_inputs)


def _unwrapped() -> bool:
    """Whether no program has replaced the steps that upstream's programs replace to see each graph."""
    from torchair import npu_fx_compiler

    steps = (
        npu_fx_compiler._optimize_fx,
        NpuFxCompiler._get_compiled_gm,
        NpuFxCompiler.__call__,
        Observer.dump_gm,
    )
    return steps == npu_fx_compiler._STEPS and npu_fx_compiler._NpuFxCompiler is NpuFxCompiler


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    *,
    phase: str = "forward",
    model: str | None = None,
    gears: _gears.Gears | None = None,
    is_inference: bool = False,
    is_backward: bool = False,
    inductor: bool = True,
) -> Callable[[list[Any]], Any]:
    """One ATen graph to a function of the list of its inputs, as the options say.

    Without `inductor` it is not compiled; captured, it still replays as a whole.
    """
    began = time.perf_counter()
    name = f"graph_{next_graph_id()}"
    logger.info("compiler inputs")
    for index, value in enumerate(example_inputs):
        logger.info("  input %s: %s", index, value)
    logger.info("  graph: %s", gm.graph)
    observer = Observer(model, phase, example_inputs)
    observer.began(gm)

    debug = config.debug
    if debug.fx_summary.enabled and not config.captures:
        summarize(
            gm, example_inputs, _fake_mode(example_inputs), debug.fx_summary.full_path("summary")
        )
        if debug.fx_summary.skip_compile:
            logger.warning("the graph is summarized and runs eagerly: skip_compile is set")
            return boxed(Eager(gm))
    if debug.data_dump.enabled:
        logger.warning("the graph's data is dumped and it runs eagerly: data_dump.type is set")
        return boxed(DataDump(gm, debug.data_dump, name))
    dump = config.dump_config
    if dump.enable_dump and config.captures and dump.data_dump_stage.raw == "original":
        return boxed(CaptureDump(gm, dump))

    from torchair import npu_fx_compiler  # where programs replace this step

    optimized = npu_fx_compiler._optimize_fx(_copy(gm), config, observer)
    attributes_of(optimized)  # raises for ranges that a pass or a graph break cut in two
    model_id = 0
    if not config.captures:
        model_id = engine_graph(optimized, example_inputs, config, name, observer, gears)
    elif debug.graph_dump.enabled:
        dump_code(optimized, debug.graph_dump, name)

    if dump.enable_dump or dump.dump_config_path.raw is not None:
        logger.warning("the graph's data is dumped and it runs eagerly: dump_config is set")
        if config.captures:
            return boxed(CaptureDump(optimized, dump))
        return boxed(EngineDump(optimized, dump, name, model_id))
    run = _executable(
        optimized,
        example_inputs,
        config,
        gears,
        is_inference=is_inference,
        is_backward=is_backward,
        inductor=inductor,
    )
    logger.event("compiled %s (%s) in %.3f s", name, phase, time.perf_counter() - began)
    made = logged(run)
    made.graph = optimized  # type: ignore[attr-defined]
    return made


def _executable(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    gears: _gears.Gears | None,
    *,
    is_inference: bool,
    is_backward: bool,
    inductor: bool,
) -> Callable[[list[Any]], Any]:
    if config.debug.run_eagerly:
        logger.warning("the graph runs eagerly: debug.run_eagerly is set")
        return boxed(Eager(gm))
    streamed = needs_streams(gm)
    if len(npu_devices(gm)) > 1 or (streamed and not capturable(gm)):
        return boxed(Eager(gm))
    captured = config.captures and is_inference and _stays_on_device(gm)
    if streamed or not inductor or _plan.on():  # Inductor's code computes
        eager = Eager(gm)
        inputs = dataclasses.replace(
            CaptureInputs.of(gm), updated=[], updated_nodes=[]
        )  # integers are part of what is captured
        return Captured(lambda values: eager(*values), inputs, config) if captured else boxed(eager)
    from torch._inductor import config as inductor_config

    # The card's graph runs operator by operator, and each rounds its results.
    patches = {"emulate_precision_casts": True}
    if _keeps_buffers(config):
        patches["inplace_buffers"] = False
    with inductor_config.patch(patches):
        program = compile_on_host(
            gm,
            example_inputs,
            _fake_mode(example_inputs),
            keep_cat=not config.debug.aclgraph.remove_cat_ops,
            is_inference=is_inference,
            is_backward=is_backward,
        )
    if gears is not None and not is_backward:
        return gears.guarded(program)
    return Captured(program, CaptureInputs.of(gm), config, Eager(gm)) if captured else program


def _stays_on_device(gm: GraphModule) -> bool:
    """Whether nothing crosses to or from the host, which no capture could replay."""
    places = gm.graph.find_nodes(op="placeholder")
    values = [node.meta.get("val") for node in places]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return not cpu_outputs(gm) and all(value.device.type == "npu" for value in tensors)


def _keeps_buffers(config: CompilerConfig) -> bool:
    return bool(config.debug.aclgraph.disable_reinplace_inplaceable_ops_pass)


def _fake_mode(example_inputs: Sequence[Any]) -> Any:
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensorMode

    return detect_fake_mode(list(example_inputs)) or FakeTensorMode(allow_non_fake_inputs=True)


def _copy(gm: GraphModule) -> GraphModule:
    """A copy whose graph may be rewritten; tensors that it holds are shared."""
    copied = GraphModule(gm, copy.deepcopy(gm.graph))  # of the nodes, not of what they hold
    copied.meta.update(gm.meta)
    return copied
