"""What a timeline must be for Perfetto and its kind; a check that needs none of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

Event = dict[str, Any]
Track = list[tuple[int, int]]


def exact(moment: str) -> int:
    """Nanoseconds of microseconds in text, as Chrome and MindStudio Insight read them."""
    return int(moment.replace(".", ""))


def rounded(moment: str) -> int:
    """The same by way of a floating point number, as Perfetto reads them."""
    value = float(moment)
    return int(value) * 1000 if value == int(value) else round(value * 1000)


def check_timeline(events: list[Event]) -> Counter[str]:
    """Spans are not negative and nest; each flow goes forward from a span to a span. Returns the flows of each category."""
    for event in events:
        assert event["ph"] in "XsfMC", event
        assert event["ph"] == "M" or float(event["ts"]) > 0, event
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["name"], event
        if event["ph"] == "C":
            assert min(event["args"].values()) >= 0, event
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    tracks = _tracks(events, exact)
    assert set(tracks) <= named, f"tracks without a name: {set(tracks) - named}"
    for read in (exact, rounded):
        for place, spans in _tracks(events, read).items():
            _check_nesting(place, spans)
    return _check_flows(events, tracks)


def _tracks(events: list[Event], read: Any) -> dict[tuple[int, int], Track]:
    """Spans by track, in the order of their start; the file's order where that is one."""
    tracks: dict[tuple[int, int], Track] = {}
    for event in events:
        if event["ph"] == "X":
            start = read(event["ts"])
            place = (event["pid"], event["tid"])
            tracks.setdefault(place, []).append((start, start + round(event["dur"] * 1000)))
    for spans in tracks.values():
        spans.sort(key=lambda span: span[0])
    return tracks


def _check_nesting(place: tuple[int, int], spans: Track) -> None:
    ends: list[int] = []
    for start, end in spans:
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or end <= ends[-1], f"spans of {place} overlap in part at {start}"
        ends.append(end)


def _check_flows(events: list[Event], tracks: dict[tuple[int, int], Track]) -> Counter[str]:
    starts = {place: {start for start, _ in spans} for place, spans in tracks.items()}
    flows: dict[tuple[str, str], dict[str, int]] = {}
    for event in events:
        if event["ph"] in "sf":
            key, moment = (event["cat"], str(event["id"])), exact(event["ts"])
            assert event["ph"] not in flows.setdefault(key, {}), f"{key} twice"
            flows[key][event["ph"]] = moment
            place = (event["pid"], event["tid"])
            assert moment in starts[place] or any(a <= moment <= b for a, b in tracks[place]), (
                f"{key} is on no span"
            )
    for key, ends in flows.items():
        assert set(ends) == {"s", "f"} and ends["s"] <= ends["f"], key
    return Counter(category for category, _ in flows)
