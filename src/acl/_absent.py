"""Modules of acl that run machine code of the card: every function of theirs is there, and raises when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def functions(module: str, what: str) -> Callable[[str], Any]:
    """The `__getattr__` of such a module; `what` is what its functions are about."""

    def find(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")

        def absent(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(
                f"{module}.{name}: {what} is machine code of the card and cannot run on the host; "
                "call the operators of torch_npu instead"
            )

        return absent

    return find
