"""What an operator is to the registry: its samples, its schema, its calls by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C import FunctionSchema
from torch._library import simple_registry

NAMESPACE = "npu"

#: every operator of the package is defined and implemented through this one
library = torch.library.Library(NAMESPACE, "FRAGMENT")  # noqa: TOR901


@dataclass
class Sample:
    """Inputs that tests, opcheck, docs and benchmarks share.

    `build(make)` returns the positional arguments; `make(*shape, dtype=torch.float32, low=-1, high=1,
    requires_grad=False)` builds a tensor on the device under test (integers too, in [low, high)).
    `kwargs` may be a dict or a function of `make`.
    """

    build: Callable[..., tuple[Any, ...]]
    kwargs: dict[str, Any] | Callable[..., dict[str, Any]] = field(default_factory=dict)
    name: str = ""

    def inputs(self, make: Callable[..., torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs = self.kwargs(make) if callable(self.kwargs) else self.kwargs
        return self.build(make), dict(kwargs)


@dataclass
class Operator:
    """What the registry knows of one operator (one schema)."""

    name: str
    schema: FunctionSchema
    definition: type
    exported: bool = True

    @property
    def room(self) -> str:
        return self.definition.__module__.split(".")[-2]

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """Every argument by name, with its default (None without one)."""
        return {a.name: a.default_value for a in self.schema.arguments}

    @functools.cached_property
    def keywords(self) -> tuple[str, ...]:
        """The keyword-only arguments."""
        return tuple(a.name for a in self.schema.arguments if a.kwarg_only)

    @functools.cached_property
    def overload(self) -> Any:
        packet = getattr(torch.ops.npu, self.schema.name.split("::")[-1])
        return getattr(packet, self.schema.overload_name or "default")


def function_of(definition: type, name: str) -> Callable[..., Any] | None:
    """A function of the class as written, not bound: its first parameter is an operator argument."""
    for base in definition.__mro__:
        if name in vars(base):
            raw = vars(base)[name]
            return raw.__func__ if isinstance(raw, staticmethod) else raw
    return None


def register_fake(name: str, function: Callable[..., Any]) -> None:
    """`torch.library.register_fake` without its walk over the stack, which costs more than all else at import."""
    entry = simple_registry.singleton.find(f"{NAMESPACE}::{name}")
    entry.fake_impl.register(function, function.__module__, lib=library, allow_override=False)


def mutable_arguments(schema: FunctionSchema) -> list[str]:
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def bind(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = operator.defaults.copy()
    bound.update(zip(operator.defaults, args, strict=False))
    bound.update(kwargs)
    return bound


def spread(operator: Operator, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by name as the dispatcher takes them: positional ones, then keyword-only ones."""
    if not operator.keywords:
        return list(values.values()), {}
    rest = {name: values[name] for name in operator.keywords}
    return [value for name, value in values.items() if name not in rest], rest


def signature(schema: FunctionSchema) -> inspect.Signature:
    parameters = []
    for argument in schema.arguments:
        kind = (
            inspect.Parameter.KEYWORD_ONLY
            if argument.kwarg_only
            else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        default = (
            argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        )
        parameters.append(inspect.Parameter(argument.name, kind, default=default))
    return inspect.Signature(parameters)
