"""Checks that look at shapes, dtypes and plain values alone are asked once for each of them; and chips that have an
operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from softnpu import chips, settings
from torch_npu._errors import BadArgument, ErrCode

#: how many shapes an operator keeps that its check let pass
_REMEMBERED = 1024
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def once(check: Callable[..., None]) -> Callable[[tuple[Any, ...]], None]:
    """Asks the check once for the same shapes, dtypes and values on the same chip."""
    passed: set[Any] = set()

    def ask(args: tuple[Any, ...]) -> None:
        key = _key(args)
        if key is not None and key in passed:
            return
        check(*args)
        if key is not None:
            if len(passed) >= _REMEMBERED:
                passed.clear()
            passed.add(key)

    return ask


def _key(args: tuple[Any, ...]) -> Any:
    """What a check by shape sees of plain arguments, on this chip; None if there is more to them."""
    key: list[Any] = [chips.current().name]
    for value in args:
        if type(value) in _PLAIN:
            key += (value.shape, value.dtype)
        elif value is None or type(value) in (bool, int, float, str):
            key.append(value)
        else:
            return None
    return tuple(key)


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
