"""What ranges mean for the nodes inside: read by the compiler and by the conversion to a GE graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from softnpu import chips
from torchair._air import define, mark

STREAM = "_user_stream_label"
DUMP = "torchair_enable_data_dump"
_BOOLEANS = ("_op_exec_never_timeout", "_enable_inner_parallel")


def _check(keys: list[str], values: list[str], need_execute: bool = False) -> None:
    """Raises for values out of range; the marks themselves do nothing when they run."""
    given = dict(zip(keys, values, strict=True))
    chip = chips.current()
    limits = {"_op_aicore_num": chip.cube_cores, "_op_vectorcore_num": chip.vector_cores}
    for key, most in limits.items():
        if key not in given:
            continue
        least = min(1, most)
        if not given[key].isdigit() or not least <= int(given[key]) <= most:
            raise ValueError(
                f"limit_core_num: expected {key.lstrip('_')} in [{least}, {most}] on {chip.name}, "
                f"received {given[key]}"
            )


def _nothing(need_execute: bool = False) -> None:
    """Leaving a range."""


def _graph_only(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("npu_wait_tensor orders operators of a graph; it cannot run eagerly")


ENTER = mark("scope_enter(str[] keys, str[] values, bool need_execute=False) -> ()", _check, _check)
EXIT = mark("scope_exit(bool need_execute=False) -> ()", _nothing, _nothing)
WAIT_TENSOR = define(
    "wait_tensor(Tensor self, Tensor dependency) -> Tensor",
    _graph_only,
    lambda self, dependency: torch.empty_like(self),
)
torch.fx.node.has_side_effect(WAIT_TENSOR)


def attributes_of(gm: GraphModule) -> dict[torch.fx.Node, dict[str, str | bool]]:
    """The attributes that each node has from the ranges around it; inner ranges win.

    Raises RuntimeError for a range that is left without having been entered, or the reverse.
    """
    stack: list[dict[str, Any]] = []
    found: dict[torch.fx.Node, dict[str, str | bool]] = {}
    for node in gm.graph.nodes:
        if node.target is ENTER:
            stack.append(dict(zip(node.args[0], node.args[1], strict=True)))
        elif node.target is EXIT:
            if not stack:
                raise RuntimeError(
                    f"{node.name}: torch.ops.air.scope_exit without scope_enter before it. They come in pairs; "
                    "look at custom passes, and at graph breaks inside a scope"
                )
            stack.pop()
        elif stack and node.op == "call_function":
            found[node] = _merged(stack)
    if stack:
        raise RuntimeError(
            f"torch.ops.air.scope_enter({stack[-1]}) without scope_exit after it. They come in pairs; look at "
            "custom passes, and at graph breaks inside a scope"
        )
    return found


def _merged(stack: list[dict[str, str]]) -> dict[str, str | bool]:
    merged: dict[str, str | bool] = {}
    for attributes in stack:
        for key, value in attributes.items():
            merged[key] = value == "True" if key in _BOOLEANS else value
        if attributes.get("_super_kernel_scope") == "":
            merged.pop("_super_kernel_scope")
            merged.pop("_super_kernel_options", None)
    return merged
