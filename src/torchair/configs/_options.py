"""What an option is: a default, what it accepts, and the text in which the graph engine takes it.

As upstream has it, reading an option gives the option itself (`config.mode.value` is its value, booleans as "1" and
"0"), and setting it checks the value. A section knows its options and refuses any other name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

INT64_MAX = 2**63 - 1


class Option:
    """One option; `allowed` lists its values, None lets every value pass that the subclass accepts."""

    def __init__(self, default: Any, allowed: Sequence[Any] | None = None):
        self.default = default
        self.allowed = allowed
        self._value = default

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._value!r})"

    @property
    def raw(self) -> Any:
        """The value as it was given."""
        return self._value

    @property
    def value(self) -> Any:
        """The value as the graph engine takes it: a string, or None."""
        if self._value is None:
            return None
        if isinstance(self._value, bool):
            return "1" if self._value else "0"
        return str(self._value)

    def set(self, name: str, value: Any) -> None:
        self._value = self.accept(name, value)

    def accept(self, name: str, value: Any) -> Any:
        if self.allowed is not None and not any(
            value == one and isinstance(value, bool) == isinstance(one, bool)
            for one in self.allowed
        ):
            raise ValueError(f"{name}: expected one of {list(self.allowed)}, received {value!r}")
        return value


class Flag(Option):
    def __init__(self, default: bool | None):
        super().__init__(default, [True, False])


class IntRange(Option):
    def __init__(self, default: int | None, low: int, high: int):
        super().__init__(default)
        self.low, self.high = low, high

    def accept(self, name: str, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name}: expected an integer, received {value!r}")
        if not self.low <= value <= self.high:
            raise ValueError(
                f"{name}: expected a value in [{self.low}, {self.high}], received {value}"
            )
        return value


class Typed(Option):
    """A value of one of the types, or None. It reaches the compiler as it is."""

    def __init__(self, default: Any, *types: type):
        super().__init__(default)
        self.types = types

    @property
    def value(self) -> Any:
        return self._value

    def accept(self, name: str, value: Any) -> Any:
        if value is not None and not isinstance(value, self.types):
            expected = " or ".join(kind.__name__ for kind in self.types)
            raise TypeError(
                f"{name}: expected {expected} or None, received {type(value).__name__} {value!r}"
            )
        return value


class Integers(Typed):
    def __init__(self, default: list[int] | None):
        super().__init__(default, list, tuple)

    def accept(self, name: str, value: Any) -> Any:
        value = super().accept(name, value)
        if value is not None and not all(isinstance(one, int) for one in value):
            raise TypeError(f"{name}: expected integers, received {value!r}")
        return value


class Function(Typed):
    """A callable, or None."""

    def __init__(self) -> None:
        super().__init__(None)

    def accept(self, name: str, value: Any) -> Callable[..., Any] | None:
        if value is not None and not callable(value):
            raise TypeError(f"{name}: expected a callable or None, received {type(value).__name__}")
        return value


class Anything(Typed):
    """Whatever the program gives: a memory pool, a filter."""

    def accept(self, name: str, value: Any) -> Any:
        return value


class ExistingFile(Option):
    def __init__(self, suffix: str = ""):
        super().__init__(None)
        self.suffix = suffix

    def accept(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if not (os.path.isfile(value) and str(value).endswith(self.suffix)):
            kind = f"a {self.suffix} file" if self.suffix else "a file"
            raise FileNotFoundError(f"{name}: expected {kind} that exists, received {value!r}")
        return value


class ExistingDirectory(Option):
    def accept(self, name: str, value: Any) -> Any:
        if value is None or not os.path.isdir(value):
            raise FileNotFoundError(f"{name}: expected a directory that exists, received {value!r}")
        return value


class RealPath(Option):
    """A path, kept as an absolute one."""

    def accept(self, name: str, value: Any) -> Any:
        return os.path.realpath(value)


class Pattern(Option):
    def __init__(self, default: str, expression: str, example: str):
        super().__init__(default)
        self.expression, self.example = expression, example

    def accept(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or not re.fullmatch(self.expression, value):
            raise ValueError(f"{name}: expected text like {self.example!r}, received {value!r}")
        return value


class Section:
    """A group of options and of other groups."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__.get(name)
        if isinstance(value, (Option, Section)) and known is None and not self._sealed():
            self.__dict__[name] = value
        elif isinstance(known, Option):
            known.set(f"{type(self).__name__.lstrip('_')}.{name}", value)
        elif isinstance(known, Section) and isinstance(value, type(known)):
            self.__dict__[name] = value
        elif isinstance(known, Section):
            raise ValueError(
                f"{name}: expected a {type(known).__name__}, received {type(value).__name__}"
            )
        else:
            self._unknown(name, ValueError)

    def __getattr__(self, name: str) -> Any:  # only for names that are not there
        if name.startswith("__"):
            raise AttributeError(name)
        return self._unknown(name, AttributeError)

    def _unknown(self, name: str, kind: type[Exception]) -> Any:
        options = [key for key in self.__dict__ if not key.startswith("_")] or list(self.__dict__)
        raise kind(f"{type(self).__name__} has no option {name}, all options are {options}")

    def _sealed(self) -> bool:
        return self.__dict__.get("_closed", False)

    def _seal(self) -> None:
        """No option is added after this."""
        self.__dict__["_closed"] = True

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, Option]]:
        """All options below, with their dotted names."""
        for name, value in self.__dict__.items():
            if isinstance(value, Section):
                yield from value.leaves(f"{prefix}{name}.")
            elif isinstance(value, Option):
                yield f"{prefix}{name}", value

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, by dotted name."""
        return {name: o.raw for name, o in self.leaves() if o.raw != o.default}
