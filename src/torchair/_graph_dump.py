"""The graph engine's form of a compiled graph, and what debug.graph_dump writes of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from torchair._observe import Observer
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger
from torchair.inference import _gears

_model_ids = itertools.count(1)


def engine_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    name: str,
    observer: Observer,
    gears: _gears.Gears | None,
) -> int:
    """Converts the graph for the graph engine and writes it where the options say; returns its number there."""
    from torchair import ge
    from torchair.ge._assigned import assigned_outputs

    dump = config.debug.graph_dump
    graph = ge.convert(gm, example_inputs, config=config, name=name, gears=gears)
    kinds = {"original": graph, "optimized": assigned_outputs(graph, gm)}
    number = name.rpartition("_")[2]
    if dump.enabled and not config.export.export_mode:
        for kind, one in kinds.items():
            one.dump(dump.full_path(f"dynamo_{kind}_graph_{number}"))
    suffix = dump.type.raw or "txt"
    for kind, one in kinds.items():
        path = observer.path(f"aot_{observer.phase}_{kind}_ge_graph.{suffix}")
        if path is not None:
            one.dump(path)
    return next(_model_ids)


def dump_code(gm: GraphModule, dump: Any, name: str) -> None:
    """Captured graphs never become GE graphs: what they run is the FX graph's code."""
    if dump.type.raw != "py":
        logger.warning("graphs of this mode are dumped as py, not as %s", dump.type.raw)
        return
    path = dump.full_path(f"dynamo_optimized_graph_{name.rpartition('_')[2]}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(gm.print_readable(print_output=False))
