"""Where programs for older versions of TorchAir register converters; mirrors upstream's module of this name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchair._ge_concrete_graph.supported_declaration import Support
from torchair.ge import registry

__all__ = ["Converter", "declare_supported", "register_fx_node_ge_converter"]

_declared: dict[Any, Converter] = {}


class Converter:
    """Decorates the function that converts `aten_op`; what it gives back can declare the cases that it supports."""

    def __init__(self, aten_op: Any, is_lite: bool = False):
        if is_lite:
            raise NotImplementedError("Converter: is_lite: only the standard operator set is here")
        self._aten_op = aten_op
        self._register = registry.register_fx_node_ge_converter(aten_op)
        self._converter: Callable[..., Any] | None = None
        self._supported_cases: list[Support] | None = None

    def __call__(self, converter: Callable[..., Any]) -> Converter:
        self._converter = self._register(converter)
        return self

    @property
    def supported_cases(self) -> list[Support] | None:
        return self._supported_cases

    @supported_cases.setter
    def supported_cases(self, cases: Sequence[Support]) -> None:
        for case in cases:
            if not isinstance(case, Support):
                raise AssertionError(f"supported_cases: expected Support, received {case!r}")
        self._supported_cases = list(cases)


def register_fx_node_ge_converter(aten_op: Any) -> Converter:
    """A Converter of the operator, to decorate the function."""
    return Converter(aten_op)


def declare_supported(supported_cases: Sequence[Support]) -> Callable[[Converter], Converter]:
    """Decorates a Converter with cases that it supports."""

    def declare(converter: Converter) -> Converter:
        if not isinstance(converter, Converter):
            raise AssertionError(f"declare_supported: expected a Converter, received {converter!r}")
        converter.supported_cases = list(supported_cases)
        _declared[converter._aten_op] = converter
        return converter

    return declare


def _declare_supported_converters() -> dict[Any, Converter]:
    """Operator -> converter, of all that declared cases."""
    return _declared
