"""The `air` operators: marks in a graph that torchair.scope and torchair.ops leave, for the compiler to read.

They have side effects, so that neither dynamo nor AOTAutograd drops them. Run eagerly, marks do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import has_side_effect

library = torch.library.Library("air", "FRAGMENT")  # noqa: TOR901


def define(schema: str, eager: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines `air::<schema>`: `eager` runs on any device, `fake` while a graph is traced."""
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"air::{name}", fake, lib=library, _stacklevel=2)
    return getattr(torch.ops.air, name).default


def mark(schema: str, eager: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Like `define`, for an operator that must stay where it stands though nobody reads its result."""
    overload = define(schema, eager, fake)
    has_side_effect(overload)
    return overload
