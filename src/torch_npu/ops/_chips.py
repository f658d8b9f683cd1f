"""The chips that have an operator: its fact `chips`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from softnpu import chips, settings
from torch_npu._errors import BadArgument, ErrCode


def _first(family: str) -> str:
    """The name of the first chip of a family."""
    return next(name for name in chips.names() if chips.get(name).family == family)


def check_chip(families: Sequence[str]) -> None:
    """The current chip belongs to one of the families."""
    chip = chips.current()
    if chip.family not in families:
        wanted = " or ".join("Ascend950" if f == "A5" else f"of the family {f}" for f in families)
        raise BadArgument("device", wanted, chip.name, ErrCode.NOT_SUPPORT)


def a_chip_of(families: Sequence[str] | None) -> AbstractContextManager[Any]:
    """The settings of a chip of the families; the current ones where they fit."""
    if families is None or chips.current().family in families:
        return nullcontext()
    return settings.override(soc=_first(families[0]))
