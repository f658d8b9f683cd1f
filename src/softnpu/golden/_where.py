"""Where an operator was called: the path of the module, the line of the program, forward or backward.

In backward there are no frames of the program. The autograd node that runs has the sequence number that it got in
forward, and what was known then is remembered under that number.
"""

from __future__ import annotations

import collections
import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as hooks

_REMEMBERED = 200_000  # calls of forward that backward can ask for
_HERE = os.path.dirname(os.path.abspath(__file__))
_SKIPPED = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))), name) + os.sep
    for name in ("torch", "torch_npu", "torchair")
)
_SKIPPED_FILES = (contextlib.__file__, threading.__file__)

Place = dict[str, Any]


class Where:
    """`started` and `ended` are called for each module, where given: path and arguments, then the result."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.names: dict[int, str] = {}
        self.root: Any = None
        self.forward: collections.OrderedDict[int, Place] = collections.OrderedDict()
        self.started: Callable[[str, Any, Any], Any] | None = None
        self.ended: Callable[[Any, Any], None] | None = None

    @property
    def stack(self) -> list[tuple[str, Any]]:
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    @contextlib.contextmanager
    def registered(self) -> Iterator[None]:
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: Any, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        name = self._name(module)
        ticket = None
        if self.started is not None:
            # A hook of all modules is not given the keyword arguments; the frame that calls it has them.
            kwargs = sys._getframe(1).f_locals.get("kwargs") or {}
            ticket = self.started(name, args, kwargs)
        self.stack.append((name, ticket))

    def _leave(self, module: Any, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling() or not self.stack:
            return
        _, ticket = self.stack.pop()
        if self.ended is not None and ticket is not None and result is not None:
            self.ended(ticket, result)

    def _name(self, module: Any) -> str:
        """`Model.layers.3.mlp`: the outermost module's class, then the names of its attributes."""
        module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
        if not self.stack and module is not self.root and id(module) not in self.names:
            self.root = module
            top = type(module).__name__
            self.names = {
                id(inner): f"{top}.{name}".rstrip(".").replace("._orig_mod", "")
                for name, inner in module.named_modules()
            }
        known = self.names.get(id(module))
        if known is None:
            above = self.stack[-1][0] + "." if self.stack else ""
            known = f"{above}{type(module).__name__}"
        return known

    def now(self) -> Place:
        """The place of the operator that is being called."""
        node = torch._C._current_autograd_node()
        if node is not None:
            place = self.forward.get(node._sequence_nr())
            if place is None:
                return {"module": "", "source": None, "phase": "backward", "node": node.name()}
            return {**place, "phase": "backward"}
        place = {
            "module": self.stack[-1][0] if self.stack else "",
            "source": _source(),
            "phase": "forward",
        }
        # The node of this operator is the last one; operators that make no node come after it.
        self.forward.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
        if len(self.forward) > _REMEMBERED:
            self.forward.popitem(last=False)
        return place


def _source() -> dict[str, Any] | None:
    """The innermost line that is neither PyTorch's nor ours."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        inner = name.startswith(_SKIPPED) or name.startswith(_HERE) or name in _SKIPPED_FILES
        if (
            not inner
            and not name.startswith("<frozen")
            and os.sep + "torch_npu" + os.sep not in name
        ):
            line = frame.f_lineno
            return {
                "file": name,
                "line": line,
                "function": frame.f_code.co_name,
                "text": linecache.getline(name, line).strip(),
            }
        frame = frame.f_back  # type: ignore[assignment]
    return None
