"""The memory of a planned process: its peak by kind and by line of the program, and the curve over a step.

The allocator's events are replayed. What a block is follows from marks (parameters, gradients, optimizer state and
buffers of collectives are told by the objects that own them) and from its life: what a forward pass allocates and a
backward pass still finds is an activation, what lives shorter is a temporary.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from softnpu.plan.recording import (
    ACTIVATIONS,
    COMMUNICATION,
    FORWARD,
    FRAGMENTATION,
    GRADIENTS,
    KINDS,
    OTHER,
    PARAMETERS,
    STATE,
    TEMPORARIES,
    Event,
    Origin,
    Recording,
)

Span = tuple[int, int, float]  # events from, until, bytes
_FIRST = (PARAMETERS, GRADIENTS, STATE)  # of several marks, the first one here counts
_NOWHERE = Origin("", 0, "", "")
_NEVER = 1 << 62


@dataclass(slots=True)
class Block:
    """One allocation. `born` and `died` are indexes of events, `order` its place among allocations and marks."""

    address: int
    size: int
    born: int
    died: int
    order: int
    origin: int
    kind: str = TEMPORARIES
    workspace: bool = False  # a kernel took it and gave it back


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of the program holds at the peak."""

    origin: Origin
    size: int
    blocks: int
    kinds: dict[str, int]


@dataclass(slots=True)
class Memory:
    """The analysis. Bytes by kind are those at the peak of allocated memory; fragmentation is what was reserved at most
    beyond that, so all kinds together are `peak_reserved`."""

    peak_allocated: int = 0
    peak_reserved: int = 0
    peak_needed: int = 0  # reserved, had the allocator always given back what it only caches
    workspace: int = 0  # of the temporaries at the peak, those inside of a kernel
    peak_without_workspace: int = 0
    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    lines: list[Line] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    peak_at: int = 0  # index of the event
    window: tuple[int, int] = (0, 0)  # events of the step with the peak
    curve: list[tuple[int, dict[str, int]]] = field(default_factory=list)  # event, bytes by kind


def analyze(found: Recording, points: int = 400) -> Memory:
    """Everything that the report says of the memory of a process."""
    blocks, totals, needed = _replay(found.events)
    result = Memory(blocks=blocks, peak_needed=max(needed, default=0))
    if not totals:
        return result
    _classify(blocks, found, len(found.events))
    result.peak_at = max(range(len(totals)), key=lambda index: totals[index][0])
    result.peak_allocated = totals[result.peak_at][0]
    result.peak_reserved = max(reserved for _, reserved in totals)
    alive = [b for b in blocks if b.born <= result.peak_at < b.died]
    for block in alive:
        result.by_kind[block.kind] += block.size
        result.workspace += block.size if block.workspace else 0
    outside = [(b.born, b.died, b.size) for b in blocks if not b.workspace]
    result.peak_without_workspace = round(peak_of(outside, (0, len(found.events))))
    result.by_kind[FRAGMENTATION] = result.peak_reserved - result.peak_allocated
    result.lines = _lines(alive, found.origins)
    result.window = _window(found, blocks, result.peak_at)
    result.curve = _curve(blocks, result.window, result.peak_at, points)
    return result


def peak_of(spans: Iterable[Span], window: tuple[int, int]) -> float:
    """The most that is alive at once within the window."""
    changes: dict[int, float] = {}
    for begin, end, size in spans:
        begin, end = max(begin, window[0]), min(end, window[1] + 1)
        if begin < end:
            changes[begin] = changes.get(begin, 0.0) + size
            changes[end] = changes.get(end, 0.0) - size
    now = most = 0.0
    for at in sorted(changes):
        now += changes[at]
        most = max(most, now)
    return most


def _replay(events: Sequence[Event]) -> tuple[list[Block], list[tuple[int, int]], list[int]]:
    """Blocks, (allocated, reserved) after each event, and what would have been reserved without cached segments."""
    blocks: list[Block] = []
    live: dict[int, Block] = {}
    totals: list[tuple[int, int]] = []
    needed: list[int] = []
    segments = _Segments()
    allocated = 0
    for index, event in enumerate(events):
        if event.action == "alloc":
            block = Block(event.address, event.size, index, _NEVER, event.order, event.origin)
            blocks.append(block)
            live[event.address] = block
            allocated += event.size
            segments.use(event.address, 1)
        elif event.action == "free_requested":
            freed = live.pop(event.address, None)
            if freed is not None:
                freed.died = index
                freed.workspace = event.launch != 0 and events[freed.born].launch == event.launch
                allocated -= freed.size
        elif event.action == "free_completed":
            segments.use(event.address, -1)
        else:
            segments.change(event)
        totals.append((allocated, segments.reserved))
        needed.append(segments.needed)
    return blocks, totals, needed


class _Segments:
    """Which segments hold blocks: what is reserved, and how much of it could not be given back."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.sizes: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.reserved = self.needed = 0

    def change(self, event: Event) -> None:
        if event.action == "segment_alloc":
            bisect.insort(self.bases, event.address)
            self.sizes[event.address], self.used[event.address] = event.size, 0
            self.reserved += event.size
        elif event.action == "segment_free" and event.address in self.sizes:
            self.bases.remove(event.address)
            self.reserved -= self.sizes.pop(event.address)
            del self.used[event.address]
        elif event.action in ("segment_map", "segment_unmap"):  # pages of an expandable segment
            size = event.size if event.action == "segment_map" else -event.size
            self.reserved += size
            self.needed += size

    def use(self, address: int, more: int) -> None:
        place = bisect.bisect_right(self.bases, address) - 1
        if place < 0 or address >= self.bases[place] + self.sizes[self.bases[place]]:
            return
        base = self.bases[place]
        before, self.used[base] = self.used[base], self.used[base] + more
        if before == 0 and more > 0:
            self.needed += self.sizes[base]
        elif self.used[base] == 0 and more < 0:
            self.needed -= self.sizes[base]


def _classify(blocks: Iterable[Block], found: Recording, last: int) -> None:
    """Gives each block its kind."""
    marks: dict[int, list[tuple[int, str]]] = {}
    for mark in found.marks:
        marks.setdefault(mark.address, []).append((mark.order, mark.kind))
    begins = [begin for begin, _ in found.backwards]
    for block in blocks:
        end = found.events[block.died].order if block.died < last else _NEVER
        told = {k for order, k in marks.get(block.address, ()) if block.order <= order <= end}
        origin = found.origins[block.origin] if block.origin >= 0 else _NOWHERE
        kind = next((kind for kind in _FIRST if kind in told), "")
        kind = kind or _by_life(block.order, end, origin.phase, begins, found)
        # What a collective wrote may be an activation like any other; what is none is a buffer.
        is_buffer = COMMUNICATION in told and kind in (TEMPORARIES, OTHER)
        block.kind = COMMUNICATION if is_buffer else kind


def _by_life(born: int, died: int, phase: str, begins: list[int], found: Recording) -> str:
    ends = found.steps.ends
    if bisect.bisect_left(ends, died) - bisect.bisect_left(ends, born) >= 2:
        return OTHER  # it outlives steps, and nobody says what it is
    if phase == FORWARD:
        place = bisect.bisect_left(begins, born)
        if place < len(begins) and begins[place] < died:
            return ACTIVATIONS
        if not found.complete and died == _NEVER and 0 < found.steps.first <= born:
            return ACTIVATIONS  # the program ended before a backward pass could tell
    if born < found.steps.first and died == _NEVER:
        return OTHER
    return TEMPORARIES


def _lines(alive: Iterable[Block], origins: Sequence[Origin]) -> list[Line]:
    """By line of the program, the largest first."""
    found: dict[tuple[str, int, str], list[Block]] = {}
    for block in alive:
        origin = origins[block.origin] if block.origin >= 0 else _NOWHERE
        found.setdefault((origin.file, origin.line, origin.function), []).append(block)
    lines = []
    for held in found.values():
        kinds: dict[str, int] = {}
        for block in held:
            kinds[block.kind] = kinds.get(block.kind, 0) + block.size
        origin = origins[held[0].origin] if held[0].origin >= 0 else _NOWHERE
        lines.append(Line(origin, sum(kinds.values()), len(held), kinds))
    return sorted(lines, key=lambda line: -line.size)


def _window(found: Recording, blocks: Sequence[Block], peak: int) -> tuple[int, int]:
    """The events of the step in which the peak lies; of everything, if it lies in none."""
    everything = (0, len(found.events) - 1)
    place = found.events[peak].order
    begin = found.steps.first
    for end in found.steps.ends:
        if begin <= place <= end:
            inside = [block.born for block in blocks if begin <= block.order <= end]
            return (min(inside), max(*inside, peak)) if inside else everything
        begin = end
    return everything


def _curve(
    blocks: Sequence[Block], window: tuple[int, int], peak: int, points: int
) -> list[tuple[int, dict[str, int]]]:
    """Bytes by kind at some events of the window, the peak among them; between two points the fullest moment counts."""
    first, last = window
    changes: dict[int, list[tuple[str, int]]] = {}
    now = dict.fromkeys(KINDS[:-1], 0)
    for block in blocks:
        if block.born <= first < block.died:
            now[block.kind] += block.size
        if first < block.born <= last:
            changes.setdefault(block.born, []).append((block.kind, block.size))
        if first < block.died <= last:
            changes.setdefault(block.died, []).append((block.kind, -block.size))
    width = max(1, (last - first) // points)
    curve = [(first, dict(now))]
    fullest: tuple[int, int, dict[str, int]] | None = None
    for index in range(first + 1, last + 1):
        for kind, size in changes.get(index, ()):
            now[kind] += size
        total = sum(now.values())
        if fullest is None or total > fullest[0]:
            fullest = (total, index, dict(now))
        if (index - first) % width == 0 or index in (peak, last):
            curve.append(fullest[1:])
            fullest = None
    return curve
