"""Streams and events, as torch.cuda has them."""

from __future__ import annotations

from typing import Any

import torch

from softnpu import _C
from torch_npu.npu.device import checked_index


class Stream(torch.Stream):
    """A queue of work on one device; work of a stream runs in order."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        _C.ensure_started()
        return super().__new__(cls, torch.device("npu", checked_index(device)), priority=priority)

    def wait_event(self, event: Any) -> None:
        """Makes later work of this stream wait for the event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Makes later work of this stream wait for all work given to the other one so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Records an event on this stream, a new one if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return super().query()

    def synchronize(self) -> None:
        _C.note_synchronisation("Stream.synchronize")
        super().synchronize()

    @property
    def npu_stream(self) -> int:
        """The handle of the stream."""
        return self.stream_id + 1

    def __repr__(self) -> str:
        return f"<torch.npu.Stream device={self.device} npu_stream={self.npu_stream:#x}>"


class Event(torch.Event):
    """A mark on a stream that others wait for and that carries a time."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        return super().__new__(
            cls, "npu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )

    def record(self, stream: Any = None) -> None:
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        super().wait(current_stream() if stream is None else stream)

    def synchronize(self) -> None:
        _C.note_synchronisation("Event.synchronize")
        super().synchronize()


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work on the device goes to."""
    index = checked_index(device)
    return _wrap(torch._C._accelerator_getStream(index))


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes to unless told otherwise."""
    index = checked_index(device)
    kind = torch._C._accelerator_getStream(index).device_type
    return Stream(stream_id=0, device_index=index, device_type=kind)


def set_stream(stream: Any) -> None:
    """Makes a stream the current one of its device."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager: another current stream (and its device) inside the block."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self.before = current_stream(self.stream.device)
        self.device_before = _C.exchange_device(self.stream.device_index)
        set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        if self.stream is None:
            return
        set_stream(self.before)
        _C.exchange_device(self.device_before)


def stream(stream: Any) -> StreamContext:
    return StreamContext(stream)
