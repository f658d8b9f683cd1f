"""Kind c where the kernel, not the program, touches pinned memory: it does not fault on a closed page."""

from __future__ import annotations

import os
import socket
import tempfile

import numpy as np
import pytest
import torch

from tests.sanitizer import found_in, ready

COUNT = 5000  # more than four pages


def _pinned(count=COUNT):
    return torch.ones(count).pin_memory()


def _file(value=7.0, count=COUNT):
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(np.full(count, value, np.float32).tobytes())
    file.seek(0)
    return file


def _readinto(host):
    with _file() as file:
        assert file.readinto(host.numpy()) == host.nbytes


def _raw_readinto(host):
    with _file() as file:
        raw = open(file.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
        assert raw.readinto(host.numpy()) == host.nbytes


def _preadv(host):
    with _file() as file:
        half = host.nbytes // 2
        view = memoryview(host.numpy()).cast("B")
        assert os.preadv(file.fileno(), [view[:half], view[half:]], 0) == host.nbytes


def _recv_into(host):
    one, two = socket.socketpair()
    with one, two:
        one.sendall(np.full(1000, 7, np.float32).tobytes())
        view, got = memoryview(host.numpy()).cast("B"), 0
        while got < 4000:
            got += two.recv_into(view[got:], 4000 - got)


def _fromfile(host):
    with _file() as file:
        host.numpy()[:] = np.fromfile(file, np.float32)


WRITERS = [_readinto, _raw_readinto, _preadv, _recv_into, _fromfile]


def _write(host):
    with tempfile.TemporaryFile() as file:
        file.write(host.numpy())
        file.flush()
        file.seek(0)
        return np.frombuffer(file.read(), np.float32)


def _raw_write(host):
    with tempfile.TemporaryFile(buffering=0) as file:
        assert file.write(host.numpy()) == host.nbytes
        file.seek(0)
        return np.frombuffer(file.read(), np.float32)


def _tofile(host):
    with tempfile.TemporaryFile() as file:
        host.numpy().tofile(file)
        file.seek(0)
        return np.fromfile(file, np.float32)


def _send(host):
    one, two = socket.socketpair()
    with one, two:
        one.sendall(memoryview(host.numpy())[:1000])
        return np.frombuffer(two.recv(4000, socket.MSG_WAITALL), np.float32)


def _sendmsg(host):
    one, two = socket.socketpair()
    with one, two:
        assert one.sendmsg([memoryview(host.numpy())[:500], b"end"]) == 2003
        return np.frombuffer(two.recv(2000, socket.MSG_WAITALL), np.float32)


READERS = [_write, _raw_write, _tofile, _send, _sendmsg]


@pytest.mark.parametrize("system", WRITERS, ids=lambda f: f.__name__.strip("_"))
def test_what_is_read_into_memory_that_is_copied_from(system):
    def program(waits):
        host, x = _pinned(), ready(COUNT)
        x.copy_(host, non_blocking=True)
        if waits:
            torch.npu.synchronize()
        system(host)
        assert host[0] == 7 and host[999] == 7

    (found,) = found_in(lambda: program(False))
    assert found.kind == "c" and "changed on the host" in found.text
    assert any(frame.function == system.__name__ for frame in found.accesses[1].stack)
    assert found_in(lambda: program(True)) == []


@pytest.mark.parametrize("system", READERS, ids=lambda f: f.__name__.strip("_"))
def test_what_is_written_from_memory_that_is_copied_to(system):
    def program(waits):
        host, x = _pinned(), ready(COUNT) * 3
        torch.npu.synchronize()
        host.copy_(x, non_blocking=True)
        if waits:
            torch.npu.current_stream().synchronize()
        assert (system(host) == 3).all()

    (found,) = found_in(lambda: program(False))
    assert found.kind == "c" and "used on the host" in found.text
    assert any(frame.function == system.__name__ for frame in found.accesses[1].stack)
    assert found_in(lambda: program(True)) == []


@pytest.mark.parametrize("system", READERS, ids=lambda f: f.__name__.strip("_"))
def test_what_is_written_from_memory_that_is_copied_from_is_right(system):
    def program():
        host, x = _pinned(), ready(COUNT)
        x.copy_(host, non_blocking=True)
        assert (system(host) == 1).all()

    assert found_in(program) == []


@pytest.mark.parametrize("system", WRITERS, ids=lambda f: f.__name__.strip("_"))
def test_a_neighbour_on_the_same_page_is_right(system):
    """The first page of the second half is the last one of the first half, which is closed."""

    def program():
        host, x = _pinned(2 * COUNT), ready(COUNT)
        first, second = host[:COUNT], host[COUNT:]
        first.copy_(x, non_blocking=True)
        system(second)
        assert second[0] == 7

    assert found_in(program) == []


def test_after_the_finding_the_program_goes_on():
    def program():
        host, x = _pinned(), ready(COUNT)
        x.copy_(host, non_blocking=True)
        _readinto(host)
        x.copy_(host, non_blocking=True)
        torch.npu.synchronize()
        assert x.sum().item() == 7 * COUNT

    assert [f.kind for f in found_in(program)] == ["c"]
