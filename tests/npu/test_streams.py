"""torch.npu's streams and events."""

import time

import pytest
import torch

import torch_npu


def test_recorded_time_is_the_device_timeline_in_microseconds():
    first, second = (torch_npu.npu.Event(enable_timing=True) for _ in range(2))
    first.record()
    time.sleep(0.003)
    second.record()
    gap = second.recorded_time() - first.recorded_time()
    assert gap >= 3000
    assert gap == pytest.approx(first.elapsed_time(second) * 1000, abs=2)


def test_recorded_time_needs_timing_and_a_record():
    with pytest.raises(RuntimeError, match="must be recorded before"):
        torch.npu.Event(enable_timing=True).recorded_time()
    event = torch.npu.Event()
    event.record()
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        event.recorded_time()


def test_elapsed_time_refuses():
    timed, plain = torch.npu.Event(enable_timing=True), torch.npu.Event()
    timed.record()
    plain.record()
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        timed.elapsed_time(plain)
    with pytest.raises(RuntimeError, match="must be recorded"):
        timed.elapsed_time(torch.npu.Event(enable_timing=True))
    with pytest.raises(TypeError, match="must be an Event, but received int"):
        timed.elapsed_time(3)


def test_priorities():
    assert torch.npu.Stream(priority=-1).priority == -1
    assert torch.npu.Stream().priority == torch.npu.default_stream().priority == 0
    with pytest.raises(TypeError, match="priority must be an int"):
        torch.npu.Stream(priority="high")
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        torch.npu.Stream(color=1)


def test_identity_of_streams():
    a, b = torch.npu.Stream(), torch.npu.Stream()
    same = torch.npu.Stream(a)
    assert a == same and hash(a) == hash(same) and a != b
    assert a != torch.npu.Stream(1) and a != "stream"
    assert a.npu_stream == a._as_parameter_.value
    assert repr(a) == f"<torch_npu.npu.Stream device=npu:0 npu_stream={a.npu_stream:#x}>"


def test_stream_context_and_set_stream():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        with torch.npu.stream(None):
            assert torch.npu.current_stream() == stream
    assert torch.npu.current_stream() == torch.npu.default_stream()
    torch.npu.set_stream(stream)
    assert torch.npu.current_stream() == stream
    torch.npu.set_stream(torch.npu.default_stream())
    torch.npu.set_stream(None)
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_stream_of_another_device():
    there = torch.npu.Stream(device="npu:2")
    with torch.npu.stream(there):
        assert torch.npu.current_device() == 2
        assert torch.ones(1, device="npu").device.index == 2
    assert torch.npu.current_device() == 0
    assert torch.npu.current_stream(2) == torch.npu.default_stream(2)


def test_waiting_and_recording():
    a, b = torch.npu.Stream(), torch.npu.Stream()
    event = a.record_event()
    assert event.query() and a.query()
    b.wait_event(event)
    b.wait_stream(a)
    event.wait()
    event.synchronize()
    b.synchronize()


def test_sync_launch_streams_come_from_a_pool_of_four():
    streams = [torch.npu.SyncLaunchStream() for _ in range(5)]
    assert len(set(streams)) == 4 and streams[0] == streams[4]
    with torch.npu.stream(streams[0]):
        x = torch.ones(4, device="npu") + 1
        streams[0].synchronize()
        assert torch.npu.current_stream().stream_id == streams[0].stream_id
    assert x.sum().item() == 8
    assert streams[0] != torch.npu.Stream()
    with pytest.raises(TypeError, match="priority must be an int"):
        torch.npu.SyncLaunchStream(priority=None)


def test_external_stream_launches_and_refuses_the_rest():
    handle = torch.npu.Stream().npu_stream
    external = torch.npu.ExternalStream(handle)
    assert external.npu_stream == handle
    with torch.npu.stream(external):
        assert (torch.ones(2, device="npu") * 2).sum().item() == 4
    event = torch.npu.Event()
    refused = {
        "synchronize": external.synchronize,
        "query": external.query,
        "record_event": external.record_event,
        "wait_event": lambda: external.wait_event(event),
        "Event.record": lambda: event.record(external),
        "Event.wait": lambda: event.wait(external),
    }
    for name, call in refused.items():
        with pytest.raises(RuntimeError, match=f"{name} is not supported on an external stream"):
            call()
    with pytest.raises(RuntimeError, match="must be left at 0"):
        torch.npu.ExternalStream(handle, priority=-1)
    with pytest.raises(TypeError, match="handle of a stream"):
        torch.npu.ExternalStream(0)


def test_data_preprocess_stream():
    torch.npu.Stream().set_data_preprocess_stream(True)
    with pytest.raises(TypeError, match="must be a bool"):
        torch.npu.Stream().set_data_preprocess_stream(1)


def test_events_between_processes():
    event = torch.npu.Event(interprocess=True)
    handle = event.ipc_handle()
    assert torch.npu.Event.from_ipc_handle("npu:0", handle).query()
    with pytest.raises(RuntimeError, match="Event.ipc_handle"):
        torch.npu.Event.from_ipc_handle("npu:0", b"nothing")


def test_event_repr():
    event = torch.npu.Event()
    assert repr(event) == "<torch_npu.npu.Event uninitialized>"
    event.record()
    assert repr(event) == f"<torch_npu.npu.Event {event.npu_event:#x}>"


@pytest.mark.parametrize("call", [torch_npu.npu.current_stream, torch_npu.npu.default_stream])
def test_stream_of_a_device_that_is_not_there(call):
    with pytest.raises(RuntimeError, match="invalid NPU device index 77"):
        call(77)


def test_sync_launch_by_keyword():
    stream = torch.npu.Stream(is_sync_launch=True)
    numbers = (stream.stream_id, stream.device_index, stream.device_type)
    names = ("stream_id", "device_index", "device_type")
    again = torch.npu.Stream(**dict(zip(names, numbers, strict=True)))
    assert again == stream
    again.synchronize()


@pytest.mark.parametrize("stream_id, device", [(99999, 0), (-1, 0), (69, 0), (0, 999), (0, -1)])
def test_numbers_of_no_stream(stream_id, device):
    kind = torch.npu.current_stream().device_type
    with pytest.raises(RuntimeError, match=f"no stream of stream_id {stream_id} on .* {device}"):
        torch.npu.Stream(stream_id=stream_id, device_index=device, device_type=kind)
