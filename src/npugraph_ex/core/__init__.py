"""npugraph_ex.core: what the rest of the package shares with torchair."""

from __future__ import annotations

import sys as _sys

from torchair.core import _concrete_graph, utils

__all__ = ["_concrete_graph", "utils"]

_sys.modules |= {f"{__name__}._concrete_graph": _concrete_graph, f"{__name__}.utils": utils}
