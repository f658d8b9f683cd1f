"""NPUGraph: device work captured once and replayed as a whole; the names of torch.cuda.graphs."""

from __future__ import annotations

import gc
import json
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _graph_debug, _graph_update, streams
from torch_npu.npu._device import current_device, synchronize
from torch_npu.npu._graph_debug import super_kernel_scope_begin, super_kernel_scope_end
from torch_npu.npu.memory import empty_cache, host_empty_cache

__all__ = [
    "is_current_stream_capturing",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "NPUGraph",
    "graph",
    "make_graphed_callables",
    "super_kernel_scope_begin",
    "super_kernel_scope_end",
]


def is_current_stream_capturing() -> bool:
    """Whether the current stream is being captured into a graph."""
    if not _C.started():
        return False
    index = current_device()
    return _C.is_capturing(index, _C.current_stream(index))


def graph_pool_handle() -> tuple[int, int]:
    """A token for a memory pool that several graphs may share."""
    return _C.new_pool(True)


def _place(stream: Any, call: str) -> tuple[int, int]:
    if not isinstance(stream, torch.Stream):
        raise TypeError(
            f"{call}: stream must be a torch_npu.npu.Stream, but received {type(stream).__name__}"
            + pta_error(ErrCode.TYPE)
        )
    if isinstance(stream, streams.ExternalStream):
        raise RuntimeError(
            f"{call} is not supported on an external stream" + pta_error(ErrCode.NOT_SUPPORT)
        )
    return stream.device_index, stream.stream_id


def graph_task_group_begin(stream: Any) -> None:
    """Marks the start of the operators whose arguments can be updated after the capture."""
    _C.task_group_begin(*_place(stream, "graph_task_group_begin"))


def graph_task_group_end(stream: Any) -> Any:
    """Ends the group and returns its handle, which `graph_task_update_begin` takes."""
    return _C.task_group_end(*_place(stream, "graph_task_group_end"))


def graph_task_update_begin(stream: Any, handle: Any) -> None:
    """The operators launched on the stream until `graph_task_update_end` run nothing: their arguments
    replace those of the group's operators, in order, in every later replay."""
    place = _place(stream, "graph_task_update_begin")
    if not isinstance(handle, _C.TaskGroup):
        raise TypeError(
            "graph_task_update_begin: handle must be what graph_task_group_end returned, but received "
            f"{type(handle).__name__}" + pta_error(ErrCode.TYPE)
        )
    _C.task_update_begin(*place, handle)


def graph_task_update_end(stream: Any) -> None:
    """Ends an update; every operator of the group must have been launched."""
    _C.task_update_end(*_place(stream, "graph_task_update_end"))


#: the graph of each capture, by the capture's number, which no other has; those of torch.accelerator are not here
_capturing: weakref.WeakValueDictionary[int, NPUGraph] = weakref.WeakValueDictionary()


class NPUGraph:
    """Work captured between `capture_begin` and `capture_end`, replayed by `replay`.

    `keep_graph`: `replay` needs no `instantiate` in either case; it is accepted as torch.cuda's.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        if not isinstance(keep_graph, bool):
            raise TypeError(f"keep_graph must be a bool, but received {keep_graph!r}")
        self._graph = _C.Graph()
        self._keep_graph = keep_graph
        self.auto_dispatch_capture = False
        self.graph_dispatch_mode = _graph_update.GraphDispatchMode()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begins to capture the work of the current stream, which must not be the default one."""
        if os.environ.get("TASK_QUEUE_ENABLE") == "2":
            raise RuntimeError(
                "a graph cannot be captured with TASK_QUEUE_ENABLE=2; set it to 0 or 1"
                + pta_error(ErrCode.NOT_SUPPORT)
            )
        self._graph.capture_begin(_pool_id(pool), capture_error_mode)
        index = current_device()
        _capturing[_C.capture_id(index, _C.current_stream(index))] = self

    def capture_end(self) -> None:
        """Ends the capture, on the stream that began it."""
        self._graph.capture_end()

    @staticmethod
    def get_currently_capturing_graph() -> NPUGraph:
        """The graph into which the current stream is being captured."""
        index = current_device()
        number = _C.capture_id(index, _C.current_stream(index)) if _C.started() else None
        if number is None:
            raise RuntimeError(
                "get_currently_capturing_graph: the current stream is not being captured"
                + pta_error(ErrCode.PARAM)
            )
        if number not in _capturing:
            raise RuntimeError(
                "get_currently_capturing_graph: no NPUGraph during a torch.accelerator.Graph capture"
                + pta_error(ErrCode.NOT_SUPPORT)
            )
        return _capturing[number]

    def instantiate(self) -> None:
        """Makes the graph ready; a captured graph always is."""
        if not self._graph.captured:
            raise RuntimeError("instantiate: capture a graph first" + pta_error(ErrCode.PARAM))

    def replay(self) -> None:
        """Runs the captured work on the current stream."""
        self._graph.replay()

    def reset(self) -> None:
        """Drops the captured work and its memory."""
        self._graph.reset()

    def pool(self) -> tuple[int, int]:
        """The token of the graph's memory pool."""
        return self._graph.pool()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Accepts a generator of the NPU; those that captured operators use are found by themselves."""
        if not isinstance(generator, torch.Generator) or generator.device.type != "npu":
            raise TypeError(f"generator must be an NPU generator, but received {generator!r}")

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Gives captured operators new arguments: one dict for each (or one for all), by argument name.

        Needs a capture with `torch.npu.graph(..., auto_dispatch_capture=True)`.
        """
        if not self.auto_dispatch_capture:
            raise RuntimeError(
                "update needs a graph captured with auto_dispatch_capture=True"
                + pta_error(ErrCode.PARAM)
            )
        self.graph_dispatch_mode.update_capture_record(cpu_update_input)

    def enable_debug_mode(self) -> None:
        """As torch.cuda's: `debug_dump` needs nothing more here."""

    def debug_dump(self, debug_path: str) -> None:
        """Writes the captured steps as JSON (type, stream, operator, kernels) and, as `.aligned.json`, as a timeline
        that trace viewers show."""
        if not self._graph.captured:
            raise RuntimeError("debug_dump: capture a graph first" + pta_error(ErrCode.PARAM))
        steps = self._graph.steps()
        with open(debug_path, "w", encoding="utf-8") as file:
            json.dump({"pool": self.pool(), "steps": steps}, file, indent=1)
        with open(f"{os.path.splitext(debug_path)[0]}.aligned.json", "w", encoding="utf-8") as file:
            json.dump(_graph_debug.timeline(steps), file)

    def super_kernel_optimize(
        self,
        optimize_options: dict[str, Any] | None = None,
        debug_options: dict[str, Any] | None = None,
    ) -> None:
        """Checks the options; there are no super kernels to fuse here."""
        _graph_debug.check_super_kernel_options("optimize_options", optimize_options)
        _graph_debug.check_super_kernel_options("debug_options", debug_options)


def _pool_id(pool: Any) -> tuple[int, int]:
    if pool is None:
        return (0, 0)
    if not (isinstance(pool, tuple) and len(pool) == 2 and all(isinstance(n, int) for n in pool)):
        raise TypeError(
            "pool must be what graph_pool_handle() or NPUGraph.pool() returned, but received "
            f"{pool!r}" + pta_error(ErrCode.TYPE)
        )
    return pool


class graph:
    """Context manager: captures the work inside into an NPUGraph, on a stream of its own.

    Args:
        npu_graph: where the work goes.
        pool: shares the memory of another graph (`graph_pool_handle()` or `other.pool()`).
        stream: the stream to capture on.
        auto_dispatch_capture: makes the arguments of attention operators updatable by `NPUGraph.update`.
        capture_error_mode: which waiting calls fail: of any thread ("global"), of this one
            ("thread_local"), or only those on captured streams ("relaxed").
    """

    default_capture_stream: Any = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: Any = None,
        stream: Any = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        if not hasattr(npu_graph, "capture_begin"):
            raise TypeError(
                "graph: argument 'npu_graph' must be an NPUGraph, but received "
                f"{type(npu_graph).__name__}" + pta_error(ErrCode.TYPE)
            )
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = streams.Stream()
            stream = graph.default_capture_stream
            if stream.device_index != current_device():
                stream = streams.Stream()
        self.pool = () if pool is None else (pool,)
        self.capture_stream = stream
        self.stream_ctx = streams.stream(stream)
        self.npu_graph = npu_graph
        self.capture_error_mode = capture_error_mode
        npu_graph.auto_dispatch_capture = auto_dispatch_capture

    def __enter__(self) -> None:
        synchronize()
        if os.environ.get("TORCH_NPU_GRAPH_GC") == "1":
            gc.collect()
        empty_cache()
        host_empty_cache()
        self.stream_ctx.__enter__()
        try:
            pool = self.pool[0] if self.pool else None
            self.npu_graph.capture_begin(pool, capture_error_mode=self.capture_error_mode)
        except BaseException:
            self.stream_ctx.__exit__(None, None, None)
            raise
        if self.npu_graph.auto_dispatch_capture:
            self.npu_graph.graph_dispatch_mode.__enter__()

    def __exit__(self, *failure: Any) -> None:
        if self.npu_graph.auto_dispatch_capture:
            self.npu_graph.graph_dispatch_mode.__exit__(*failure)
        try:
            self.npu_graph.capture_end()
        except RuntimeError:
            if failure[0] is None:  # else the error inside the block is the one to see
                raise
        finally:
            self.stream_ctx.__exit__(*failure)


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
) -> Any:
    """Functions (or modules) whose forward and backward each run as one graph.

    Args:
        callables: a function, a module, or a tuple of them, in the order in which they will run.
        sample_args: a tuple of tensors for each, with the requires_grad of the real arguments.
        num_warmup_iters: runs before the capture.
        allow_unused_input: whether an input may have no part in the outputs.
        pool: a memory pool to share.
    """
    if torch.is_autocast_enabled("npu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set "
            "`cache_enabled=False`."
        )
    one = not isinstance(callables, tuple)
    if one:
        callables, sample_args = (callables,), (sample_args,)
    pool = graph_pool_handle() if pool is None else pool
    graphed = [
        _Graphed(f, args, allow_unused_input)
        for f, args in zip(callables, sample_args, strict=True)
    ]
    synchronize()
    with streams.stream(streams.Stream()):
        for each in graphed:
            for _ in range(num_warmup_iters):
                each.warm_up()
    synchronize()
    # Captured in the order in which they run, since they share memory: forwards, then backwards in reverse.
    for each in graphed:
        each.capture_forward(pool)
    for each in reversed(graphed):
        each.capture_backward(pool)
    results = tuple(each.callable() for each in graphed)
    return results[0] if one else results


class _Graphed:
    """One callable of `make_graphed_callables`."""

    def __init__(self, function: Callable[..., Any], args: Any, allow_unused: bool) -> None:
        self.function, self.args, self.allow_unused = function, args, allow_unused
        self.parameters: tuple[torch.Tensor, ...] = ()
        if isinstance(function, torch.nn.Module):
            if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
                raise RuntimeError(
                    "Modules must not have hooks registered at the time they are passed. However, "
                    "registering hooks on modules after passing them through make_graphed_callables "
                    "is allowed."
                )
            if any(buffer.requires_grad for buffer in function.buffers()):
                raise RuntimeError(
                    "In any module passed to make_graphed_callables, only parameters may be "
                    "trainable. All buffers must have requires_grad=False."
                )
            self.parameters = tuple(function.parameters())
        leaves = tree_leaves(args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise RuntimeError("sample_args for each callable must contain only Tensors.")
        self.count = len(leaves)
        self.inputs = (*leaves, *self.parameters)
        self.forward_graph, self.backward_graph = NPUGraph(), NPUGraph()

    def _wanted(self) -> tuple[torch.Tensor, ...]:
        return tuple(x for x in self.inputs if x.requires_grad)

    def _gradients(self, outputs: Any, grads: Any) -> tuple[Any, ...]:
        return torch.autograd.grad(
            outputs=tuple(o for o in outputs if o.requires_grad),
            inputs=self._wanted(),
            grad_outputs=tuple(g for g in grads if g is not None),
            only_inputs=True,
            allow_unused=self.allow_unused,
        )

    def warm_up(self) -> None:
        outputs = tree_leaves(self.function(*self.args))
        grads = [torch.empty_like(o) if o.requires_grad else None for o in outputs]
        if any(g is not None for g in grads):
            self._gradients(outputs, grads)

    def capture_forward(self, pool: Any) -> None:
        with graph(self.forward_graph, pool=pool):
            outputs = self.function(*self.args)
        self.outputs, self.spec = tree_flatten(outputs)

    def capture_backward(self, pool: Any) -> None:
        self.grad_outputs = [torch.empty_like(o) if o.requires_grad else None for o in self.outputs]
        found: Any = iter(())
        if any(g is not None for g in self.grad_outputs):
            with graph(self.backward_graph, pool=pool):
                grads = self._gradients(self.outputs, self.grad_outputs)
            found = iter(grads)
        self.grad_inputs = [next(found, None) if x.requires_grad else None for x in self.inputs]

    def callable(self) -> Any:
        this = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
                for static, given in zip(this.inputs[: this.count], inputs, strict=False):
                    if static.data_ptr() != given.data_ptr():
                        static.copy_(given)
                this.forward_graph.replay()
                return tuple(o.detach() for o in this.outputs)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
                for static, given in zip(this.grad_outputs, grads, strict=True):
                    if static is not None and static.data_ptr() != given.data_ptr():
                        static.copy_(given)
                this.backward_graph.replay()
                # Copies: autograd may keep them as .grad, and the next replay writes the graph's own.
                return tuple(g if g is None else g.clone() for g in this.grad_inputs)

        def run(*args: Any) -> Any:
            results = Graphed.apply(*tree_leaves(args), *this.parameters)
            return tree_unflatten(list(results), this.spec)

        function = self.function
        if not isinstance(function, torch.nn.Module):
            return run
        training, eager = function.training, function.forward

        def forward(*args: Any) -> Any:
            return run(*args) if function.training == training else eager(*args)

        function.forward = forward  # type: ignore[method-assign]
        return function
