"""Numbers in the place of torch.dtype, torch.layout and torch.memory_format, looked at before PyTorch does.

Where a schema has one of these types, PyTorch takes any integer, and makes an object of it for kernels in Python by a table
whose end it does not look at. That is before any kernel runs, so the look is where the call from Python begins. Operators
without such an argument are left as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch.jit._builtins import _register_builtin

from torch_npu import _dtypes, _errors
from torch_npu._errors import BadArgument, ErrCode

_LAYOUTS = range(8)  # c10::Layout, jagged is the last
_MEMORY_FORMATS = range(4)  # c10::MemoryFormat, channels_last_3d is the last


class _Enumeration(NamedTuple):
    type: type
    numbers: Collection[int]


_ENUMERATIONS = {
    "ScalarType": _Enumeration(torch.dtype, _dtypes.NUMBERS),
    "Layout": _Enumeration(torch.layout, _LAYOUTS),
    "MemoryFormat": _Enumeration(torch.memory_format, _MEMORY_FORMATS),
}

_OBJECTS = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)

#: an argument by its place or its name -> its name and kind
_Found = dict[int | str, tuple[str, _Enumeration]]


class _CheckedFunction:
    """PyTorch's function of an operator, which gets no number that is none of an enumeration.

    It has the hash of the function: PyTorch's operators hash as theirs, and may be keys of tables by now.
    """

    def __init__(self, function: Callable[..., Any], name: str, found: _Found) -> None:
        self.function, self.name, self.found = function, name, found
        self.__module__ = function.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for at, (name, kind) in self.found.items():
            if isinstance(at, str):
                value = kwargs.get(at)
            else:
                value = args[at] if at < len(args) else None
            if value is not None and not isinstance(value, kind.type):
                self._look(value, name, kind)
        return self.function(*args, **kwargs)

    def _look(self, value: Any, name: str, kind: _Enumeration) -> None:
        """At a number, or at an object of another enumeration, whose number PyTorch would take."""
        number = None if isinstance(value, _OBJECTS) else _number(value)
        if isinstance(value, _OBJECTS) or (number is not None and number not in kind.numbers):
            received = value if number is None else f"a number that is none ({number})"
            bad = BadArgument(name, f"a torch.{kind.type.__name__}", received, ErrCode.TYPE)
            raise _errors.operator_error(self.name, bad)

    def __hash__(self) -> int:
        return hash(self.function)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def _number(value: Any) -> int | None:
    """As PyTorch reads it: NumPy's integers and tensors with one integer are numbers too."""
    try:
        return operator.index(value)
    except TypeError:  # PyTorch refuses it by name
        return None


def protect(packet: torch._ops.OpOverloadPacket) -> None:
    """Lets calls of all overloads from Python look at their numbers first."""
    overloads = [getattr(packet, name) for name in packet.overloads()]
    every = [_enumerated(overload._schema) for overload in overloads]
    if not any(every) or isinstance(packet._op, _CheckedFunction):
        return
    name = packet.__name__
    for overload, found in zip(overloads, every, strict=True):
        if found:
            overload._op = _CheckedFunction(overload._op, name, found)
    # PyTorch chooses the overload of a packet by the arguments: what is an enumeration in all that it may choose.
    taken = [_places(overload._schema) for overload in overloads]
    common = {
        at: entry
        for found in every
        for at, entry in found.items()
        if all(other.get(at) == entry for other, has in zip(every, taken, strict=True) if at in has)
    }
    packet._op = _CheckedFunction(packet._op, name, common)
    _register_builtin(
        packet._op, packet._qualified_op_name
    )  # torch.jit.script knows it by identity


def _places(schema: torch._C.FunctionSchema) -> dict[int | str, Any]:
    found: dict[int | str, Any] = {a.name: a for a in schema.arguments}
    found.update({i: a for i, a in enumerate(schema.arguments) if not a.kwarg_only})
    return found


def _enumerated(schema: torch._C.FunctionSchema) -> _Found:
    found: _Found = {}
    for at, argument in _places(schema).items():
        shown = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
        if shown in _ENUMERATIONS:
            found[at] = argument.name, _ENUMERATIONS[shown]
    return found
