"""Triton kernels as PyTorch code: those that a program launches at every step, since the interpreter takes milliseconds.

    references.register("package.module.kernel", function, digest)

`function` takes the grid, then the kernel's arguments by their names: tensors on the host that share the bytes of the
npu tensors, and numbers; what it does not take it gives back as NotImplemented. It stands for one version of the kernel, the one whose source has the digest
(`references.digest`); any other is interpreted.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["digest", "find", "register"]

_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Reference:
    function: Callable[..., Any]
    digest: str


_references: dict[str, Reference] = {}
_found: dict[Any, Callable[..., Any] | None] = {}


def register(name: str, function: Callable[..., Any], digest: str) -> None:
    """Makes `function` stand for the kernel `name`, module and name, of this digest."""
    _references[name] = Reference(function, digest)
    _found.clear()


def digest(source: str) -> str:
    """Of the words of a function's source, without decorators: comments and line breaks do not count."""
    lines = textwrap.dedent(source)
    lines = lines[lines.index("def ") :]
    words = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(lines).readline)
        if token.type not in _BLANK
    ]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def find(kernel: Any) -> Callable[..., Any] | None:
    """What stands for the Python function of a kernel, or None."""
    if kernel not in _found:
        _found[kernel] = _match(kernel)
    return _found[kernel]


def _match(kernel: Any) -> Callable[..., Any] | None:
    reference = _references.get(f"{kernel.__module__}.{kernel.__name__}")
    if reference is None:
        return None
    try:
        source = inspect.getsource(kernel)
    except OSError:  # no file
        return None
    return reference.function if digest(source) == reference.digest else None
