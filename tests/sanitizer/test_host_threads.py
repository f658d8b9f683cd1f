"""Threads of the host: what two of them launch on two streams races; what one hands over to the other does not."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.sanitizer import found_in, ready, streams


def _in_a_thread(work):
    failed = []

    def run():
        try:
            work()
        except BaseException as error:  # raised again by the caller
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _on(stream, work):
    with torch.npu.stream(stream):
        work()


def _two_threads_two_streams(order):
    x, (s, t) = ready(), streams()
    _in_a_thread(lambda: _on(s, lambda: x.add_(1)))
    if order:
        t.wait_stream(s)
    _in_a_thread(lambda: _on(t, lambda: x.mul_(2)))


def _a_worker_and_the_main_thread(order):
    x, (s,) = ready(), streams(1)
    with ThreadPoolExecutor(1) as pool:
        event = pool.submit(lambda: (_on(s, lambda: x.add_(1)), s.record_event())[1]).result()
    if order:
        torch.npu.current_stream().wait_event(event)
    x.sum()


def _a_queue_without_its_event(order):
    """The tensor is handed over, the work that makes it is not waited for."""
    items, (s,) = queue.Queue(), streams(1)

    def produce():
        with torch.npu.stream(s):
            x = torch.full((64,), 2.0, device="npu")
            items.put((x, s.record_event()))

    _in_a_thread(produce)
    x, event = items.get()
    if order:
        event.wait()
    x.record_stream(torch.npu.current_stream())
    x.sum()


def _backward_in_a_thread(order):
    layer, x, (s,) = torch.nn.Linear(8, 8).npu(), ready(4, 8), streams(1)

    def train():
        with torch.npu.stream(s):
            layer(x).sum().backward()

    torch.npu.synchronize()
    _in_a_thread(train)
    if order:
        torch.npu.current_stream().wait_stream(s)
    layer.weight.grad.sum()
    torch.npu.synchronize()


def _freed_by_another_thread(order):
    (s,) = streams(1)
    held = [ready(1000)]

    def use():
        with torch.npu.stream(s):
            held[0] * 2
        if order:
            held[0].record_stream(s)

    _in_a_thread(use)
    _in_a_thread(held.clear)
    torch.zeros(1000, device="npu")


PROGRAMS = {
    _two_threads_two_streams: "a", _a_worker_and_the_main_thread: "a", _a_queue_without_its_event: "a",
    _backward_in_a_thread: "a", _freed_by_another_thread: "b",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_a_race_of_two_threads_is_found(program):
    assert {f.kind for f in found_in(lambda: program(False))} == set(PROGRAMS[program])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert found_in(lambda: program(True)) == []


def _one_stream_for_both():
    x, (s,) = ready(), streams(1)
    for _ in range(3):
        _in_a_thread(lambda: _on(s, lambda: x.add_(1)))


def _by_a_join():
    x, (s, t) = ready(), streams()

    def work():
        _on(s, lambda: x.add_(1))
        s.synchronize()

    _in_a_thread(work)
    _on(t, lambda: x.mul_(2))


def _by_an_event():
    x, (s, t), done = ready(), streams(), threading.Event()

    def work():
        _on(s, lambda: x.add_(1))
        s.synchronize()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    done.wait()
    _on(t, lambda: x.mul_(2))
    thread.join()


def _by_a_condition():
    x, (s, t), ready_now, condition = ready(), streams(), [], threading.Condition()

    def work():
        _on(s, lambda: x.add_(1))
        s.synchronize()
        with condition:
            ready_now.append(True)
            condition.notify()

    thread = threading.Thread(target=work)
    thread.start()
    with condition:
        condition.wait_for(lambda: ready_now)
    _on(t, lambda: x.mul_(2))
    thread.join()


def _by_queues_both_ways():
    """A prefetching thread and the main thread pass two buffers round."""
    free, full, buffers = queue.Queue(), queue.SimpleQueue(), [ready(64), ready(64)]
    for buffer in buffers:
        free.put(buffer)
    (side,) = streams(1)

    def fill():
        for value in range(6):
            buffer = free.get()
            _on(side, lambda b=buffer, v=value: b.fill_(v))
            side.synchronize()
            full.put(buffer)

    thread = threading.Thread(target=fill)
    thread.start()
    for value in range(6):
        buffer = full.get()
        assert buffer[3].item() == value  # waits for the stream
        free.put(buffer)
    thread.join()


def _by_a_flag_alone():
    """Python's threads see each other's variables in order."""
    x, (s, t), flag = ready(), streams(), []

    def work():
        _on(s, lambda: x.add_(1))
        s.synchronize()
        flag.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    while not flag:
        pass
    _on(t, lambda: x.mul_(2))
    thread.join()


def _pinning_thread_of_a_data_loader():
    data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(16, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=1)
    total = ready(1)
    for (batch,) in loader:
        total += batch.to("npu", non_blocking=True).sum()
    assert total.item() == 1 + sum(range(32))


RIGHT = [
    _one_stream_for_both, _by_a_join, _by_an_event, _by_a_condition, _by_queues_both_ways, _by_a_flag_alone,
    _pinning_thread_of_a_data_loader,
]  # fmt: skip


@pytest.mark.parametrize("program", RIGHT, ids=lambda p: p.__name__.strip("_"))
def test_what_is_handed_over_is_silent(program):
    assert found_in(program) == []
