"""Old name of torchair._ge_concrete_graph.ge_apis: one function a type of node, and `attr`, `custom_op`."""

from __future__ import annotations

from typing import Any

from torchair._ge_concrete_graph import ge_apis as _ge_apis
from torchair.ge import attr, custom_op

__all__ = ["attr", "custom_op"]


def __getattr__(name: str) -> Any:
    return getattr(_ge_apis, name)
