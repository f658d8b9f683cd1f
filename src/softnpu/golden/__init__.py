"""Golden data: what operators computed on one machine, computed again and compared on another.

On a machine with a card and the real torch_npu:

    from softnpu import golden

    with golden.record("recording", ops="npu_*"):
        model(tokens)

and without one, `softnpu golden replay recording`. Pure Python on torch alone: nothing here imports torch_npu or the
extension before a replay asks for them. `softnpu golden pack` puts the package into one file that runs anywhere.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softnpu.golden._compare import Difference, Tolerance, compare
    from softnpu.golden._diff import diff
    from softnpu.golden._load import load
    from softnpu.golden._record import record
    from softnpu.golden._replay import replay

_HOMES = {
    "Difference": "_compare",
    "Tolerance": "_compare",
    "compare": "_compare",
    "diff": "_diff",
    "load": "_load",
    "record": "_record",
    "replay": "_replay",
}

__all__ = ["Difference", "Tolerance", "compare", "diff", "load", "record", "replay"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
