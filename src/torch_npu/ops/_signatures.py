"""Schemas and functions: which arguments a function names, and how it is called with all of them in order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from torch._C import FunctionSchema


def camel_case(name: str) -> str:
    """`npu_rms_norm` as CANN names it: RmsNorm."""
    words = name.removeprefix("npu_").strip("_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words)


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """The names that a function takes, and whether it takes any others by name."""
    code = inspect.unwrap(function).__code__
    count = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[:count], bool(code.co_flags & inspect.CO_VARKEYWORDS)


def by_position(
    function: Callable[..., Any], arguments: Sequence[str], label: str
) -> Callable[..., Any]:
    """The function with the parameters `arguments`, by position, of which it gets those that it names."""
    names, rest = parameters(function)
    unknown = [name for name in names if name not in arguments]
    if unknown:
        raise TypeError(f"{label}: the schema has no argument {', '.join(unknown)}")
    code = inspect.unwrap(function).__code__
    if code.co_flags & inspect.CO_VARARGS or function.__defaults__ or function.__kwdefaults__:
        raise TypeError(f"{label}: takes arguments by name, with the defaults of the schema alone")
    if rest:

        def by_name(*args: Any) -> Any:
            return function(**dict(zip(arguments, args, strict=True)))

        return by_name
    if code.co_kwonlyargcount:

        def some_by_name(*args: Any) -> Any:
            given = dict(zip(arguments, args, strict=True))
            return function(**{name: given[name] for name in names})

        return some_by_name
    if names == tuple(arguments):
        return function
    places = [arguments.index(name) for name in names]
    if not places:
        return lambda *args: function()
    if len(places) == 1:
        place = places[0]
        return lambda *args: function(args[place])
    pick = itemgetter(*places)
    return lambda *args: function(*pick(args))


def mutable_arguments(schema: FunctionSchema) -> list[str]:
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


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
