"""Streams and events."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

import pytest
import torch

import torch_npu  # noqa: F401


def test_the_default_stream_is_current():
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert torch.npu.current_stream().stream_id == 0
    assert torch.npu.default_stream(3).device == torch.device("npu:3")


def test_new_streams_differ_and_belong_to_a_device():
    first, second = torch.npu.Stream(), torch.npu.Stream()
    assert first != second and first != torch.npu.default_stream()
    assert first.device == torch.device("npu:0")
    assert torch.npu.Stream(2).device.index == 2
    assert torch.npu.Stream("npu:5").device.index == 5
    with torch.npu.device(4):
        assert torch.npu.Stream().device.index == 4


def test_streams_compare_and_hash_by_identity():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        same = torch.npu.current_stream()
    assert same == stream and hash(same) == hash(stream) and len({same, stream}) == 1
    assert isinstance(same, torch.npu.Stream) and isinstance(same, torch.Stream)


def test_the_pool_has_32_streams_and_comes_round():
    first = [torch.npu.Stream(7).stream_id for _ in range(32)]
    assert len(set(first)) == 32
    assert [torch.npu.Stream(7).stream_id for _ in range(32)] == first


def test_priorities_have_their_own_pool():
    low = {torch.npu.Stream(priority=0).stream_id for _ in range(32)}
    high = {torch.npu.Stream(priority=-1).stream_id for _ in range(32)}
    assert not low & high


def test_the_context_manager_sets_and_restores():
    side = torch.npu.Stream()
    before = torch.npu.current_stream()
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side
        with torch.npu.stream(None):
            assert torch.npu.current_stream() == side
        y = torch.ones(3, device="npu") + 1
    before.wait_stream(side)
    assert torch.npu.current_stream() == before and y.tolist() == [2, 2, 2]
    with pytest.raises(KeyError), torch.npu.stream(side):
        raise KeyError
    assert torch.npu.current_stream() == before


def test_a_stream_of_another_device_makes_it_current():
    side = torch.npu.Stream(3)
    with torch.npu.stream(side):
        assert torch.npu.current_device() == 3
        assert torch.npu.current_stream() == side
        assert torch.npu.current_stream(0) == torch.npu.default_stream(0)
    assert torch.npu.current_device() == 0
    assert torch.npu.current_stream(3) == torch.npu.default_stream(3)


def test_torch_stream_is_a_context_manager():
    side = torch.Stream("npu:1")
    with side:
        assert torch.npu.current_stream(1).stream_id == side.stream_id
        assert torch.npu.current_device() == 1
    assert torch.npu.current_stream(1) == torch.npu.default_stream(1)


def test_set_stream():
    side = torch.npu.Stream()
    torch.npu.set_stream(side)
    try:
        assert torch.npu.current_stream() == side
    finally:
        torch.npu.set_stream(torch.npu.default_stream())
    torch.npu.set_stream(None)
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_the_current_stream_is_each_threads_own():
    side, seen = torch.npu.Stream(), []
    with torch.npu.stream(side):
        thread = threading.Thread(target=lambda: seen.append(torch.npu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.npu.default_stream()]


def test_backward_runs_on_the_streams_of_forward():
    side = torch.npu.Stream()
    seen = []
    x = torch.ones(2, device="npu", requires_grad=True)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
        y.register_hook(lambda grad: seen.append(torch.npu.current_stream()))
    torch.npu.current_stream().wait_stream(side)
    y.sum().backward()
    assert seen == [side] and x.grad.tolist() == [2, 2]


def test_query_and_synchronize():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        x = torch.ones(100, device="npu") * 3
    stream.synchronize()
    assert stream.query() and x[0].item() == 3
    torch.npu.synchronize()
    torch.npu.synchronize("npu:2")


def test_repr_and_handle():
    stream = torch.npu.Stream(1)
    assert "npu:1" in repr(stream) and hex(stream.npu_stream) in repr(stream)
    assert isinstance(stream.npu_stream, int)


# --- events -----------------------------------------------------------------------------------------


def test_elapsed_time_measures_the_work_between():
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    before = time.perf_counter()
    start.record()
    began = time.perf_counter()
    time.sleep(0.02)
    ended = time.perf_counter()
    end.record()
    end.synchronize()
    after = time.perf_counter()
    assert (ended - began) * 1e3 <= start.elapsed_time(end) <= (after - before) * 1e3


def test_time_runs_forward():
    events = [torch.npu.Event(enable_timing=True) for _ in range(4)]
    for event in events:
        event.record()
        torch.ones(1000, device="npu").sum()
    assert all(a.elapsed_time(b) > 0 for a, b in zip(events, events[1:], strict=False))


def test_recording_again_moves_the_event():
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    end.record()
    start.record()
    assert start.elapsed_time(end) < 0
    end.record()
    assert start.elapsed_time(end) > 0


def test_events_without_timing_refuse_elapsed_time():
    start, end = torch.npu.Event(), torch.npu.Event()
    start.record()
    end.record()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing=True"):
        start.elapsed_time(end)


def test_events_must_be_recorded_before_elapsed_time():
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        start.elapsed_time(end)


@pytest.mark.npu_races("waits for an event that nobody records")
def test_an_unrecorded_event_is_complete():
    event = torch.npu.Event()
    assert event.query()
    event.synchronize()
    event.wait()


def test_streams_wait_for_events_and_streams():
    first, second = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(first):
        x = torch.ones(10, device="npu") * 2
        event = first.record_event()
    assert isinstance(event, torch.npu.Event)
    second.wait_event(event)
    second.wait_stream(first)
    event.wait(second)
    with torch.npu.stream(second):
        y = x + 1
    torch.npu.current_stream().wait_stream(second)
    assert event.query() and y.tolist() == [3] * 10


def test_torch_event_works_on_the_device():
    first, second = torch.Event("npu", enable_timing=True), torch.Event("npu", enable_timing=True)
    stream = torch.Stream("npu:1")
    first.record(stream)
    second.record(stream)
    assert first.query() and first.elapsed_time(second) > 0
    stream.wait_event(first)


def test_events_are_freed_in_numbers():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def record(count: int) -> None:
        for _ in range(count):
            torch.npu.Event().record()

    record(1000)
    before = resident()
    record(200_000)  # a leak of one event each would be 10 MB
    assert resident() - before < 4 * 2**20
