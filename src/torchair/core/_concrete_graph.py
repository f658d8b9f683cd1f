"""What a converter of FX graphs passes around; mirrors upstream's torchair.core._concrete_graph.

`ValuePack` pairs what shape inference found with what the graph under construction holds, `ConcreteGraphBase` is the
protocol that `torchair.npu_fx_compiler._NpuGraphConverter` drives. Our own conversion (torchair.ge.convert) needs
neither; programs subclass or replace them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

__all__ = ["ConcreteGraphBase", "ValuePack"]


class ValuePack:
    """A value during conversion: `meta` of shape inference, `npu` of the graph (`meta` itself if there is none)."""

    def __init__(self, meta: Any, npu_meta: Any = None) -> None:
        self._meta = meta
        self._npu_meta = meta if npu_meta is None else npu_meta

    @property
    def meta(self) -> Any:
        return self._meta

    @property
    def npu(self) -> Any:
        return self._npu_meta

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(self._meta, dict):
            raise ValueError(
                f"a ValuePack of {type(self._meta).__name__} has no items, asked for {key!r}"
            )
        return self._meta.get(key)

    def __repr__(self) -> str:
        meta = self._meta
        if isinstance(meta, torch.Tensor):
            text = f"{type(meta).__name__}(dtype={meta.dtype}, size={list(meta.size())})"
        else:
            text = f"{type(meta).__name__}({meta})"
        return f"Pack(meta:{text} npu:{self._npu_meta})"


class ConcreteGraphBase(ABC):
    """A graph that is built from an FX graph, node by node."""

    @abstractmethod
    def context(self) -> Any:
        """A context manager around the construction."""

    @abstractmethod
    def parse_input(self, target: Any, args: Any, kwargs: Any, meta_outputs: Any) -> Any:
        """A placeholder; `meta_outputs` is its fake value."""

    @abstractmethod
    def parse_output(self, target: Any, args: Any, kwargs: Any, meta_outputs: Any) -> Any:
        """The output node; `args` hold ValuePacks."""

    @abstractmethod
    def parse_symlist(self, syms: Any) -> Any:
        """A list of integers, some of them symbolic."""

    @abstractmethod
    def parse_node(self, target: Any, args: Any, kwargs: Any, meta_outputs: Any) -> Any:
        """Any other node; `args` hold what earlier nodes returned."""

    @abstractmethod
    def dump(self, path: str) -> None:
        """Writes the graph to a file."""

    @abstractmethod
    def compile(self) -> Any:
        """Makes the graph ready to be called."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph."""


def _is_symlist(arg: Any) -> bool:
    """Whether a list holds integers or symbols of the conversion."""
    return isinstance(arg, (list, tuple)) and any(
        isinstance(one, ValuePack) and isinstance(one.meta, (int, torch.SymInt)) for one in arg
    )
