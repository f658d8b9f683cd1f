"""The names under which torch.compile finds the backends: "npu", "npugraph_ex" and "npugraphs"."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule


def npu(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """torch.compile(backend="npu"): mode max-autotune with default options."""
    from torchair.compiler import npu_backend

    if options:
        raise ValueError(
            f'backend "npu" takes its options from a CompilerConfig, received options {sorted(options)}; '
            "use torchair.get_npu_backend(compiler_config=...)"
        )
    return npu_backend(gm, example_inputs)


def npugraph_ex(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """torch.compile(backend="npugraph_ex", options={...}): compiled, captured once a shape, replayed."""
    from torchair.compiler import npu_backend
    from torchair.npugraph_ex import config_of

    return npu_backend(gm, example_inputs, compiler_config=config_of(options))


def npugraphs(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """torch.compile(backend="npugraphs"): no compilation, the ATen graph is captured and replayed as it is."""
    from torchair.compiler import aot_compile, compile_graph
    from torchair.npugraph_ex import config_of

    config = config_of(options)
    whole = functools.partial(compile_graph, inductor=False)
    return aot_compile(gm, example_inputs, config, {}, whole)


def register() -> None:
    """Makes the names known to dynamo; installed packages are found by their entry points besides."""
    from torch._dynamo import register_backend
    from torch._dynamo.backends import registry

    for backend in (npu, npugraph_ex, npugraphs):
        if registry._COMPILER_FNS.get(backend.__name__) is not backend:
            registry._COMPILER_FNS.pop(backend.__name__, None)
            register_backend(backend, name=backend.__name__)
