"""Tests as another product: `with on("A5"): ...`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from softnpu import _C, chips, settings
from torch_npu.npu._overflow import inf_nan_mode


@contextmanager
def as_chip(name: str) -> Iterator[None]:
    """The settings of a chip, and its mode: whether results that overflow saturate."""
    try:
        with settings.override(soc=name):
            _C.set_saturate(not inf_nan_mode())
            yield
    finally:
        _C.set_saturate(not inf_nan_mode())


def on(family: str) -> AbstractContextManager[None]:
    """The settings of the first chip of a family: A2, A3, A5 (Ascend950), 310P or 910A."""
    return as_chip(next(n for n in chips.names() if chips.get(n).family == family))
