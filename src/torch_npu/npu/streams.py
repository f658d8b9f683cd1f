"""Streams and events, as torch.cuda has them, and ExternalEvent."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import torch

from softnpu import _C
from softnpu.sanitizer import _events
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu._device import memory_index, note_synchronization, raise_fault

# Streams made in turn from pools, as on the card: 32 of each priority (C++), then these.
_SYNC_LAUNCH_FIRST, _SYNC_LAUNCH_COUNT = 65, 4
_sync_launch_turn = itertools.count()
_external: set[int] = set()  # numbers that `ExternalStream` was given


def _device_type() -> int:
    return torch._C._accelerator_getStream(0).device_type


def _expect(call: str, label: str, value: Any, method: str, kind: str) -> None:
    """Streams and events are known by what they can do: programs hand over their own."""
    if not hasattr(value, method):
        raise TypeError(
            f"{call}: argument '{label}' must be {kind}, but received {type(value).__name__}"
            + pta_error(ErrCode.TYPE)
        )


class _BaseStream(torch.Stream):
    """What every kind of stream can do."""

    def wait_event(self, event: Any) -> None:
        """Makes later work of this stream wait for the event."""
        _expect("Stream.wait_event", "event", event, "wait", "an event")
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Makes later work of this stream wait for all work given to the other one so far."""
        _expect("Stream.wait_stream", "stream", stream, "record_event", "a stream")
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Records an event on this stream, a new one if none is given."""
        event = Event() if event is None else event
        _expect("Stream.record_event", "event", event, "record", "an event")
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work given to the stream is done."""
        return super().query()

    def synchronize(self) -> None:
        """Waits until all work given to the stream is done."""
        raise_fault(self.device_index)
        note_synchronization("Stream.synchronize")
        super().synchronize()

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        """Marks the stream as one that only prepares data; work runs at once here, so it changes nothing."""
        if not isinstance(is_data_preprocess_stream, bool):
            raise TypeError(
                "is_data_preprocess_stream must be a bool, but received "
                f"{type(is_data_preprocess_stream).__name__}" + pta_error(ErrCode.TYPE)
            )
        self._is_data_preprocess_stream = is_data_preprocess_stream

    @property
    def npu_stream(self) -> int:
        """The handle of the stream."""
        return self.stream_id + 1

    @property
    def priority(self) -> int:
        """-1 for a stream of high priority, else 0."""
        is_pooled = 0 <= self.stream_id < _SYNC_LAUNCH_FIRST
        return -1 if is_pooled and _C.stream_is_high_priority(self.stream_id) else 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and (self.stream_id, self.device_index) == (
            other.stream_id,
            other.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.npu_stream, self.device_index))

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<torch_npu.npu.{name} device={self.device} npu_stream={self.npu_stream:#x}>"


class Stream(_BaseStream):
    """A queue of work on one device; work of a stream runs in order.

    A negative `priority` asks for a stream of high priority, `is_sync_launch` for a `SyncLaunchStream`. A
    `torch.Stream` (or `stream_id`, `device_index`, `device_type`) gives another object for the same stream.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if isinstance(device, torch.Stream):
            return _same_stream(cls, device)
        if "stream_id" in kwargs:
            _check_numbers(cls, kwargs["stream_id"], kwargs.get("device_index", 0))
            return super().__new__(cls, **kwargs)
        if kwargs.pop("is_sync_launch", False):
            return _same_stream(cls, SyncLaunchStream(device, priority))
        if kwargs:
            raise TypeError(f"Stream got an unexpected keyword argument {next(iter(kwargs))!r}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an int, but received {priority!r}")
        _C.ensure_started()
        index = memory_index(None if isinstance(device, int) and device < 0 else device)
        return super().__new__(cls, torch.device("npu", index), priority=priority)


def _check_numbers(cls: Any, stream_id: int, device_index: int) -> None:
    """The numbers are those of a stream that exists; an external one has any number."""
    _C.ensure_started()
    if issubclass(cls, ExternalStream):
        _external.add(stream_id)
    known = 0 <= stream_id < _SYNC_LAUNCH_FIRST + _SYNC_LAUNCH_COUNT or stream_id in _external
    if not known or not 0 <= device_index < _C.device_count():
        raise RuntimeError(
            f"there is no stream of stream_id {stream_id} on device_index {device_index}"
            + pta_error(ErrCode.VALUE)
        )


def _same_stream(cls: Any, stream: torch.Stream) -> Any:
    return cls(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


class SyncLaunchStream(_BaseStream):
    """A stream whose work is launched without a task queue; four a device, handed out in turn."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> SyncLaunchStream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an int, but received {priority!r}")
        _C.ensure_started()
        turn = next(_sync_launch_turn) % _SYNC_LAUNCH_COUNT
        return super().__new__(
            cls,
            stream_id=_SYNC_LAUNCH_FIRST + turn,
            device_index=memory_index(device),
            device_type=_device_type(),
        )


class ExternalStream(Stream):
    """A stream that another library made, given by its handle. Work can be launched on it, no more:
    as upstream, it cannot be synchronized, queried, or meet events."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> Any:
        if isinstance(stream_ptr, bool) or not isinstance(stream_ptr, int) or stream_ptr <= 0:
            raise TypeError(
                f"stream_ptr must be the handle of a stream, but received {stream_ptr!r}"
            )
        if kwargs.get("priority", 0) != 0 or kwargs.get("is_sync_launch", 0) != 0:
            raise RuntimeError(
                "priority and is_sync_launch of an external stream must be left at 0"
                + pta_error(ErrCode.PARAM)
            )
        _C.ensure_started()
        return super().__new__(
            cls,
            stream_id=stream_ptr - 1,
            device_index=memory_index(device),
            device_type=_device_type(),
        )

    def _refuse(self, what: str, upstream: str = "") -> None:
        said = f" (upstream: {upstream})" if upstream else ""
        raise RuntimeError(
            f"{what} is not supported on an external stream{said}" + pta_error(ErrCode.NOT_SUPPORT)
        )

    def synchronize(self) -> None:
        self._refuse("synchronize", "NPUStream::synchronize")

    def query(self) -> bool:
        self._refuse("query", "Cannot query")
        return False

    def wait_event(self, event: Any) -> None:
        self._refuse("wait_event")

    def record_event(self, event: Any = None) -> Any:
        self._refuse("record_event")


def _managed(stream: Any, what: str) -> Any:
    if isinstance(stream, ExternalStream):
        stream._refuse(what)
    if stream is None:
        return current_stream()
    _expect(what, "stream", stream, "device_index", "a stream")
    return stream


class Event(torch.Event):
    """A mark on a stream that others wait for and that carries a time."""

    enable_timing: bool

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        event = super().__new__(
            cls, "npu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )
        event.enable_timing = enable_timing
        return event

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        """An event that another process recorded; it is complete by the time its handle arrives."""
        if not isinstance(handle, bytes) or not handle.startswith(_IPC_MARK):
            raise RuntimeError(
                "handle must be what Event.ipc_handle returned" + pta_error(ErrCode.PARAM)
            )
        event = cls(interprocess=True)
        event.record(current_stream(device))
        return event

    def ipc_handle(self) -> bytes:
        """What `from_ipc_handle` takes in another process; records the event if nobody has yet."""
        if not self.event_id:
            self.record()
        return _IPC_MARK + self.event_id.to_bytes(8, "little")

    def record(self, stream: Any = None) -> None:
        """Records the event on a stream, the current one if none is given."""
        super().record(_managed(stream, "Event.record"))
        if hasattr(self, "_unrecorded_wait"):
            _events.recorded(self)

    def wait(self, stream: Any = None) -> None:
        """Makes later work of a stream wait for this event."""
        stream = _managed(stream, "Event.wait")
        if not self.event_id and _C.sanitizer_on():
            _events.waited(self)
        super().wait(stream)

    def query(self) -> bool:
        """Whether everything before the event is done."""
        return super().query()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds on the device from this event to the other."""
        if not isinstance(end_event, torch.Event):
            raise TypeError(f"end_event must be an Event, but received {type(end_event).__name__}")
        if not (self.enable_timing and getattr(end_event, "enable_timing", True)):
            raise RuntimeError(
                "Both events must be created with argument 'enable_timing=True'."
                + pta_error(ErrCode.PARAM)
            )
        start, end = _C.event_time_ns(self.event_id or 0), _C.event_time_ns(end_event.event_id or 0)
        if not start or not end:
            raise RuntimeError(
                "Both events must be recorded before calculating elapsed time."
                + pta_error(ErrCode.INTERNAL)
            )
        return (end - start) / 1e6

    def recorded_time(self) -> int:
        """When the event was recorded, in microseconds of the device's clock."""
        if not self.enable_timing:
            raise RuntimeError(
                "recorded_time needs an event created with enable_timing=True"
                + pta_error(ErrCode.PARAM)
            )
        time_ns = _C.event_time_ns(self.npu_event)
        if not time_ns:
            raise RuntimeError(
                "Event must be recorded before getting recorded timestamp."
                + pta_error(ErrCode.INTERNAL)
            )
        return time_ns // 1000

    def synchronize(self) -> None:
        """Waits until everything before the event is done."""
        super().synchronize()

    @property
    def npu_event(self) -> int:
        """The handle of the event; 0 before it is recorded."""
        return self.event_id or 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_event)

    def __repr__(self) -> str:
        where = f"{self.npu_event:#x}" if self.npu_event else "uninitialized"
        return f"<torch_npu.npu.Event {where}>"


_IPC_MARK = b"softnpu-event:"


class ExternalEvent:
    """An event that may be waited for before it is recorded: the stream that waits is blocked, what is launched on
    it queues and runs when another stream records the event. `reset` makes it usable again. In a capture the three
    become steps of the graph."""

    def __init__(self) -> None:
        self._signal = _C.ExternalSignal(f"ExternalEvent {id(self):#x}")
        self._waits = 0
        self._recorded_at = 0  # for the sanitizer

    def record(self, stream: Any = None) -> None:
        """Records the event on a stream, the current one if none is given."""
        stream = _managed(stream, "ExternalEvent.record")
        if _C.sanitizer_on() and _C.values_exist():
            _events.external_record(self)
        _C.external_record(self._signal, stream.device_index, stream.stream_id)

    def wait(self, stream: Any = None) -> None:
        """Makes later work of a stream wait until the event is recorded."""
        stream = _managed(stream, "ExternalEvent.wait")
        self._waits += 1
        _C.external_wait(self._signal, stream.device_index, stream.stream_id)

    def reset(self, stream: Any = None) -> None:
        """Makes the event unrecorded again when the stream gets there."""
        stream = _managed(stream, "ExternalEvent.reset")
        _C.external_reset(self._signal, stream.device_index, stream.stream_id)

    @property
    def npu_event(self) -> int:
        """The handle of the event."""
        return id(self._signal)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_event)

    def __repr__(self) -> str:
        return f"<torch_npu.npu.ExternalEvent {id(self):#x}>"


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work on the device goes to."""
    _C.ensure_started()
    return _same_stream(Stream, torch._C._accelerator_getStream(memory_index(device)))


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes to unless told otherwise."""
    _C.ensure_started()
    return Stream(stream_id=0, device_index=memory_index(device), device_type=_device_type())


def set_stream(stream: Any) -> None:
    """Makes a stream the current one of its device; None changes nothing."""
    if stream is None:
        return
    if not isinstance(stream, torch.Stream):
        raise TypeError(
            "set_stream: argument 'stream' must be a stream or None, but received "
            f"{type(stream).__name__}" + pta_error(ErrCode.TYPE)
        )
    torch._C._accelerator_setStream(stream)


def fake_record_stream(self: torch.Tensor, s: Any) -> None:
    """What stands for `Tensor.record_stream` in graphs of older versions; passes look for it by this name.

    It runs while a graph is traced, where it does nothing. Here dynamo traces `record_stream` itself.
    """
    if not isinstance(self, torch._subclasses.fake_tensor.FakeTensor):
        raise RuntimeError(
            "fake_record_stream: expected a tensor of a trace, received one with data: call Tensor.record_stream"
        )


class StreamContext:
    """Context manager: another current stream (and its device) inside the block; nothing for None."""

    def __init__(self, stream_ctx: Any) -> None:
        self.stream = stream_ctx

    def __enter__(self) -> None:
        if self.stream is None:
            return
        _expect("stream", "stream", self.stream, "device_index", "a stream or None")
        self.before = torch._C._accelerator_getStream(self.stream.device_index)
        self.device_before = _C.exchange_device(self.stream.device_index)
        set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        if self.stream is None:
            return
        set_stream(self.before)
        _C.exchange_device(self.device_before)


def stream(stream: Any) -> StreamContext:
    """`with torch.npu.stream(s):` another current stream inside the block."""
    return StreamContext(stream)
