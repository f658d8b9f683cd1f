"""What the sanitizer finds: one finding, as the native part tells it. Imports no torch: `softnpu run` reads findings.

`terminal` prints them, `page` draws them.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

#: of a program in which something was found
EXIT_CODE = 66

#: the kinds, with the name of their page in docs/sanitizer/
KINDS = {
    "a": ("stream_race", "race between streams"),
    "b": ("recycled_memory", "memory freed too early"),
    "c": ("pinned_memory", "pinned memory used too early"),
    "d": ("graph_memory", "memory of a graph"),
    "e": ("collectives", "collectives that disagree"),
    "f": ("events", "an event that orders nothing"),
    "g": ("unwritten_memory", "memory that nobody wrote"),
    "h": ("limits", "a limit of the card"),
}
_OURS = (
    f"{os.sep}torch{os.sep}",
    f"{os.sep}torch_npu{os.sep}",
    f"{os.sep}softnpu{os.sep}",
    "<frozen",
)


@dataclass(frozen=True)
class Frame:
    """A line of the program."""

    file: str
    line: int
    function: str

    @property
    def ours(self) -> bool:
        """Whether it is a frame of torch or of softnpu, not of the program."""
        return any(part in self.file for part in _OURS)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Access:
    """One of the two sides: who did what to which bytes, and where in the program."""

    operator: str
    stream: str
    does: str
    tensor: str
    bytes: tuple[int, int]
    step: int
    stack: list[Frame]
    in_graph: bool


@dataclass(frozen=True)
class Finding:
    """What is wrong, the accesses, where the memory comes from, and the call that is missing."""

    kind: str
    text: str
    repair: str
    accesses: list[Access]
    allocated: list[Frame]
    allocation_bytes: int
    related: list[Frame]
    related_text: str
    count: int
    history: list[tuple[int, str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, found: dict[str, Any]) -> Finding:
        frames = {k: [Frame(*f) for f in found[k]] for k in ("allocated", "related")}
        accesses = [
            Access(**{**one, "stack": [Frame(*f) for f in one["stack"]]})
            for one in found["accesses"]
        ]
        history = [tuple(moment) for moment in found["history"]]
        return cls(**{**found, **frames, "accesses": accesses, "history": history})

    @property
    def page(self) -> str:
        return KINDS[self.kind][0]

    @property
    def title(self) -> str:
        return KINDS[self.kind][1]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def from_dict(found: dict[str, Any]) -> Finding:
    """The reverse of `as_dict`, after a way through JSON."""

    def frames(items: list[dict[str, Any]]) -> list[Frame]:
        return [Frame(**item) for item in items]

    accesses = [
        Access(**{**one, "stack": frames(one["stack"]), "bytes": tuple(one["bytes"])})
        for one in found["accesses"]
    ]
    plain = {k: frames(found[k]) for k in ("allocated", "related")}
    history = [tuple(moment) for moment in found["history"]]
    return Finding(**{**found, **plain, "accesses": accesses, "history": history})


def read(found: list[dict[str, Any]]) -> list[Finding]:
    """The findings of all processes of a job; the same one of several ranks once."""
    seen: dict[tuple[Any, ...], Finding] = {}
    for one in found:
        plain = {k: v for k, v in one.items() if k != "rank"}
        finding = from_dict(plain)
        stacks = tuple(str(access.stack) for access in finding.accesses)
        seen.setdefault((finding.kind, finding.text, stacks), finding)
    return list(seen.values())


def place(stack: list[Frame]) -> str:
    """The innermost line that is the program's own."""
    for frame in stack:
        if not frame.ours:
            return str(frame)
    return str(stack[0]) if stack else "not in Python"
