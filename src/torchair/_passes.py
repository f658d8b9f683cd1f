"""Passes over the ATen graph on npu, between AOTAutograd and compilation: the user's, no-ops, fusions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torchair import _streams, patterns
from torchair._air import under_one_name
from torchair._observe import Observer
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger

aten = torch.ops.aten


def optimize(
    gm: GraphModule, example_inputs: Sequence[Any], config: CompilerConfig, observer: Observer
) -> None:
    """Runs all passes in place, in upstream's order; each leaves a trace with the observer."""
    under_one_name(gm)
    _streams.untie(gm)
    experimental = config.experimental_config
    steps: list[tuple[str, Callable[..., Any] | None]] = [
        ("post_grad_custom_pre_pass", config.post_grad_custom_pre_pass.raw),
        ("optimize_noop_ops", _remove_noops if experimental.remove_noop_ops else None),
        ("joint_graph_passes", _joint_graph_passes if experimental.npu_fx_pass else None),
        ("apply_pattern_passes", _fuse if experimental.pattern_fusion_pass else None),
        ("view_to_reshape", _view_to_reshape),
        ("post_grad_custom_post_pass", config.post_grad_custom_post_pass.raw),
    ]
    for name, step in steps:
        if step is None:
            continue
        step(gm, example_inputs, config)
        under_one_name(gm)
        gm.graph.lint()
        gm.recompile()
        observer.passed(name, gm)
    logger.debug("after fx graph optimization, graph is %s", gm.graph)


def _remove_noops(gm: GraphModule, example_inputs: Sequence[Any], config: CompilerConfig) -> None:
    from torch._inductor.fx_passes.post_grad import remove_noop_ops

    remove_noop_ops(gm.graph)
    gm.graph.eliminate_dead_code()
    logger.debug("After removing noop ops, graph is %s", gm.graph)


def _joint_graph_passes(
    gm: GraphModule, example_inputs: Sequence[Any], config: CompilerConfig
) -> None:
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    joint_graph_passes(gm)


def _fuse(gm: GraphModule, example_inputs: Sequence[Any], config: CompilerConfig) -> None:
    patterns.apply(gm, config.captures)


def _view_to_reshape(
    gm: GraphModule, example_inputs: Sequence[Any], config: CompilerConfig
) -> None:
    """A pass may have changed strides that a view relied on."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
