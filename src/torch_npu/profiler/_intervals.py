"""Sums of time spans: what computing, communicating and idling have in common."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def merge(spans: Iterable[Span]) -> list[Span]:
    """The union, as spans in order that do not touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def subtract(spans: list[Span], others: list[Span]) -> list[Span]:
    """What of `spans` is in none of `others`; both merged."""
    left: list[Span] = []
    place = 0
    for start, end in spans:
        while place < len(others) and others[place][1] <= start:
            place += 1
        at = start
        for other in others[place:]:
            if other[0] >= end:
                break
            if other[0] > at:
                left.append((at, other[0]))
            at = max(at, other[1])
        if at < end:
            left.append((at, end))
    return left


def gaps(spans: list[Span]) -> list[Span]:
    """What lies between merged spans."""
    return [(a[1], b[0]) for a, b in zip(spans, spans[1:], strict=False)]


def clip(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """The parts from `start` to `end`."""
    cut = ((max(a, start), min(b, end)) for a, b in spans)
    return [(a, b) for a, b in cut if a < b]


def total(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)
