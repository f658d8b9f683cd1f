"""Tests as another product: `with on("A5"): ...`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from softnpu import chips, settings


def on(family: str) -> AbstractContextManager[settings.Settings]:
    """The settings of the first chip of a family: A2, A3, A5 (Ascend950), 310P or 910A."""
    name = next(n for n in chips.names() if chips.get(n).family == family)
    return settings.override(soc=name)
