"""acl.rt's callbacks and host memory that devices use."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch

import acl
import torch_npu  # noqa: F401

NO_BLOCK, BLOCK = 0, 1
H2D, D2H = 1, 2


class Reporter:
    """A thread that runs callbacks until it is told to stop."""

    def __init__(self):
        self.running, self.codes = True, []
        self.thread, code = acl.util.start_thread(self.run, ["an argument", 50])
        assert code == 0

    def run(self, arguments):
        assert arguments[0] == "an argument"
        while self.running:
            code = acl.rt.process_report(arguments[1])
            if code != 107012:  # not subscribed yet
                self.codes.append(code)

    def stop(self):
        self.running = False
        assert acl.util.stop_thread(self.thread) == 0


@pytest.fixture
def reporter():
    made = Reporter()
    yield made
    made.stop()


def test_a_callback_runs_on_the_subscribed_thread(reporter):
    stream, _ = acl.rt.create_stream()
    seen, done = [], threading.Event()

    def function(data):
        seen.append((data, threading.get_ident()))
        done.set()

    assert acl.rt.launch_callback(function, "x", NO_BLOCK, stream) == 107015
    assert acl.rt.subscribe_report(reporter.thread, stream) == 0
    assert acl.rt.subscribe_report(reporter.thread, stream) == 107011
    assert acl.rt.launch_callback(function, "x", NO_BLOCK, stream) == 0
    assert done.wait(20)
    assert seen == [("x", reporter.thread)]
    assert acl.rt.unsubscribe_report(reporter.thread, stream) == 0
    assert acl.rt.unsubscribe_report(reporter.thread, stream) == 107011
    assert acl.rt.launch_callback(function, "x", NO_BLOCK, stream) == 107015


def test_later_work_of_the_stream_waits_for_a_blocking_callback(reporter):
    side = torch.npu.Stream()
    assert acl.rt.subscribe_report(reporter.thread, side.npu_stream) == 0
    x, go, called = torch.zeros(3, device="npu"), threading.Event(), []

    def function(tensor):
        go.wait(20)
        called.append(tensor.tolist())  # of the host's own view: what was launched before
        tensor.fill_(5)

    with torch.npu.stream(side):
        x.add_(1)
        assert acl.rt.launch_callback(function, x, BLOCK, side.npu_stream) == 0
        y = x * 2
    assert not side.query() and not called
    go.set()
    side.synchronize()
    assert called == [[1.0] * 3] and y.tolist() == [10.0] * 3


def test_a_report_that_nobody_launched_ends_by_its_timeout():
    stream, _ = acl.rt.create_stream()
    assert acl.rt.process_report(1) == 107012
    assert acl.rt.subscribe_report(threading.get_ident(), stream) == 0
    assert acl.rt.process_report(1) == 507012
    assert acl.rt.process_report(0) == acl.rt.process_report(-2) == 107000
    assert acl.rt.launch_callback(print, None, 2, stream) == 107000
    assert acl.rt.subscribe_report(1, 1 << 60) == 107000
    assert acl.util.stop_thread(1) == 107000
    with pytest.raises(
        TypeError, match="acl.rt.launch_callback: fn must be callable, received int"
    ):
        acl.rt.launch_callback(3, None, 0, stream)


def test_registered_host_memory_is_the_device_s_too():
    held = (ctypes.c_uint8 * 64)(*range(64))
    address, (device, code) = ctypes.addressof(held), acl.rt.malloc(64, 0)
    assert code == 0
    assert acl.rt.memcpy(device, 64, address, 64, D2H) == 107000, "not the device's yet"
    mapped, code = acl.rt.host_register(address, 64, 0)
    assert (mapped, code) == (address, 0)
    assert acl.rt.host_register(address, 64, 0) == (0, 107000)
    assert acl.rt.memcpy(device, 64, mapped, 64, D2H) == 0
    assert acl.util.ptr_to_bytes(device, 64) == bytes(range(64))
    assert acl.rt.memcpy(mapped + 60, 8, device, 8, H2D) == 107000, "past its end"
    assert acl.rt.host_unregister(address) == 0
    assert acl.rt.host_unregister(address) == 107000
    assert acl.rt.memcpy(device, 64, address, 64, D2H) == 107000
    assert acl.rt.host_register(0x10, 64, 0) == acl.rt.host_register(address, 64, 1) == (0, 107000)


def test_utilization():
    found, code = acl.rt.get_device_utilization_rate(0)
    assert code == 0 and 0 <= found["cube_utilization"] <= 100
    held = torch.empty(40 << 30, dtype=torch.int8, device="npu")
    assert 60 <= acl.rt.get_device_utilization_rate(0)[0]["memory_utilization"] <= 70
    del held
    assert acl.rt.get_device_utilization_rate(99) == ({}, 107001)
