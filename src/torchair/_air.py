"""The `air` operators: marks in a graph that torchair.scope and torchair.ops leave, for the compiler to read.

They have side effects, so that neither dynamo nor AOTAutograd drops them. Run eagerly, marks do nothing. Passes of
the captured modes know the marks as `npugraph_ex` operators; the compiler takes them for the `air` ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import has_side_effect

library = torch.library.Library("air", "FRAGMENT")  # noqa: TOR901
_other_name = torch.library.Library("npugraph_ex", "FRAGMENT")  # noqa: TOR901
_same: dict[Any, Any] = {}  # operator of npugraph_ex -> of air


def define(schema: str, eager: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines `air::<schema>`: `eager` runs on any device, `fake` while a graph is traced."""
    return _define(library, "air", schema, eager, fake)


def mark(schema: str, eager: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Like `define`, for an operator that must stay where it stands though nobody reads its result."""
    overload = define(schema, eager, fake)
    has_side_effect(overload)
    if "!" not in schema:
        other = _define(_other_name, "npugraph_ex", schema, eager, fake)
        has_side_effect(other)
        _same[other] = overload
    return overload


def under_one_name(gm: GraphModule) -> None:
    """Makes the marks of a graph `air` operators."""
    for node in gm.graph.nodes:
        node.target = _same.get(node.target, node.target)


def _define(
    where: Any, space: str, schema: str, eager: Callable[..., Any], fake: Callable[..., Any]
) -> Any:
    where.define(schema)
    name = schema.partition("(")[0]
    where.impl(name, eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{space}::{name}", fake, lib=where, _stacklevel=2)
    return getattr(getattr(torch.ops, space), name).default
