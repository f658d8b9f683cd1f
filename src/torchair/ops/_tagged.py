"""Tagged events and streams: torch.npu.Event and record_stream by name, so that graphs can hold them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from torchair._air import library, mark

_lock = threading.Lock()
_events: dict[str, Any] = {}
_tags: dict[int, str] = {}
_streams: dict[tuple[str, int], Any] = {}


def npu_create_tagged_event(tag: str) -> Any:
    """A torch.npu.Event known by this tag; each tag is taken once."""
    with _lock:
        if tag in _events:
            raise ValueError(f"npu_create_tagged_event: the tag {tag!r} is already in use")
        event = torch.npu.Event()
        _events[tag] = event
        _tags[id(event)] = tag
        return event


def npu_tagged_event_record(event: Any) -> None:
    """Records the event on the current stream, in a graph or out of it."""
    torch.ops.air.tagged_event_record(_tag_of(event))


def npu_tagged_event_wait(event: Any) -> None:
    """Makes the current stream wait for the event, in a graph or out of it."""
    torch.ops.air.tagged_event_wait(_tag_of(event))


def npu_record_tagged_stream(input: torch.Tensor, tagged_stream: str) -> None:
    """Tensor.record_stream for the stream of this tag: its memory is not reused before that stream is done."""
    torch.ops.air.record_tagged_stream_(input, tagged_stream)


def stream_of(tag: str, device: int | None = None) -> Any:
    """The stream of this tag on the device, made at its first use; "default" is the default stream."""
    index = torch.npu.current_device() if device is None else device
    if tag == "default":
        return torch.npu.default_stream(index)
    with _lock:
        if (tag, index) not in _streams:
            _streams[tag, index] = torch.npu.Stream(index)
        return _streams[tag, index]


def streams_of(device: int) -> list[Any]:
    """All tagged streams of a device."""
    with _lock:
        return [stream for (_, index), stream in _streams.items() if index == device]


def _tag_of(event: Any) -> str:
    tag = _tags.get(id(event))
    if tag is None:
        raise ValueError(
            f"{event} has no tag: make it with torchair.ops.npu_create_tagged_event(tag)"
        )
    return tag


def _event(tag: str) -> Any:
    if tag not in _events:
        raise ValueError(
            f"no event has the tag {tag!r}: make it with torchair.ops.npu_create_tagged_event(tag)"
        )
    return _events[tag]


def _record(tag: str, created_inside: bool = False) -> None:
    _event(tag).record(torch.npu.current_stream())


def _wait(tag: str, created_inside: bool = False) -> None:
    _event(tag).wait(torch.npu.current_stream())


def _record_stream(input: torch.Tensor, tag: str) -> None:
    input.record_stream(stream_of(tag, input.device.index))


def _stream(stream_id: str, device_index: str, device_type: str) -> Any:
    """The stream that a graph names by its numbers; the words of `OUTER` name the current one."""
    if (stream_id, device_index, device_type) == OUTER:
        return torch.npu.current_stream()
    numbers = {"stream_id": stream_id, "device_index": device_index, "device_type": device_type}
    return torch.npu.Stream(**{name: int(value) for name, value in numbers.items()})


def _record_on(
    event_tag: str,
    stream_id: str,
    device_index: str,
    device_type: str,
    created_inside: bool = False,
) -> None:
    _event(event_tag).record(_stream(stream_id, device_index, device_type))


def _wait_on(
    event_tag: str,
    stream_id: str,
    device_index: str,
    device_type: str,
    created_inside: bool = False,
) -> None:
    _event(event_tag).wait(_stream(stream_id, device_index, device_type))


def _wait_stream(*numbers: str) -> None:
    _stream(*numbers[:3]).wait_stream(_stream(*numbers[3:]))


def names(stream: Any) -> tuple[str, str, str]:
    """The numbers by which a graph names the stream."""
    return str(stream.stream_id), str(stream.device_index), str(stream.device_type)


def resolved(args: tuple[Any, ...], outer: Any) -> tuple[Any, ...]:
    """Arguments of a mark with the words of `OUTER` replaced by that stream's numbers."""
    known = dict(zip(OUTER, names(outer), strict=True))
    return tuple(known.get(one, one) for one in args)


def keep_event(tag: str, event: Any) -> None:
    """The event of a graph, under a tag of the graph's; the same graph compiled again takes it over."""
    with _lock:
        _events[tag] = event


def keep_stream(tag: str, stream: Any) -> None:
    """The stream of a graph under a tag of the graph's."""
    with _lock:
        _streams[tag, stream.device_index] = stream


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Traced, not run."""


#: what stands in a graph for the stream on which it is called
OUTER = ("DEFAULT_STREAM_ID_MARKER", "DEFAULT_DEVICE_INDEX_MARKER", "DEFAULT_DEVICE_TYPE_MARKER")
_STREAM = "str stream_id, str device_index, str device_type"
_OTHER = "str other_stream_id, str other_device_index, str other_device_type"
_ON_STREAM = f"(str event_tag, {_STREAM}, bool created_inside=False) -> ()"


RECORD = mark("tagged_event_record(str tag, bool created_inside=False) -> ()", _record, _nothing)
WAIT = mark("tagged_event_wait(str tag, bool created_inside=False) -> ()", _wait, _nothing)
RECORD_STREAM = mark("record_tagged_stream(Tensor input, str tag) -> ()", _record_stream, _nothing)
mark("record_tagged_stream_(Tensor(a!) input, str tag) -> ()", _record_stream, _nothing)
# Recording a stream changes no value: in a functional graph it is the form that writes nothing.
library.impl(
    "record_tagged_stream_",
    lambda input, tag: torch.ops.air.record_tagged_stream(input, tag),
    "Functionalize",
)
RECORD_ON = mark(f"tagged_event_record_on_stream{_ON_STREAM}", _record_on, _nothing)
WAIT_ON = mark(f"tagged_event_wait_on_stream{_ON_STREAM}", _wait_on, _nothing)
WAIT_STREAM = mark(f"tagged_stream_wait_stream({_STREAM}, {_OTHER}) -> ()", _wait_stream, _nothing)

#: all of these, and those that name a stream by its numbers
ON_STREAMS = (RECORD_ON, WAIT_ON, WAIT_STREAM)
MARKS = (RECORD, WAIT, RECORD_STREAM, *ON_STREAMS)
