"""The processes that `softnpu info` shows: who is asked, who is told, and what is made of bad answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from softnpu import host
from softnpu.cli import main

HOLDER = """
import sys, torch, torch_npu
there = torch.empty(2**20, dtype=torch.int8, device="npu")
print("ready", flush=True)
sys.stdin.read()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Names of this test alone."""
    monkeypatch.setattr(host, "_PREFIX", f"softnpu_test_{os.getpid()}_{time.monotonic_ns()}")


@contextlib.contextmanager
def answering(reply, name=None):
    """A socket of this process that answers everybody with `reply(connection)`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{host._PREFIX}/{name or f'{os.geteuid()}/{os.getpid()}'}")
    listener.listen()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                line, _ = listener.accept()
                with line, contextlib.suppress(OSError):
                    reply(line)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_what_is_announced_is_seen():
    host.announce(lambda: {0: 5, 63: 2**62})
    (seen,) = host.processes()
    assert (seen.pid, seen.memory, seen.note) == (os.getpid(), {0: 5, 63: 2**62}, "")


def test_nothing_is_left_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", HOLDER], stdin=subprocess.DEVNULL, env={**os.environ}, check=True
    )
    assert run.returncode == 0 and not list(tmp_path.glob("softnpu*"))


def test_a_killed_process_is_gone(monkeypatch):
    monkeypatch.setattr(host, "_PREFIX", "softnpu")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "ready\n"
    assert holder.pid in [p.pid for p in host.processes()]
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert holder.pid not in [p.pid for p in host.processes()]


def test_a_fork_does_not_keep_its_parent_s_socket():
    read, write = os.pipe()
    ready, tell = os.pipe()
    parent = os.fork()
    if parent == 0:  # announces, and leaves a child behind that lives on
        host.announce(dict)
        if os.fork() == 0:
            os.close(write)
            os.write(tell, b"1")  # what a fork closes is closed
            os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.close(tell)
    os.waitpid(parent, 0)
    assert os.read(ready, 1) == b"1"
    assert host.processes() == []
    os.close(write)
    os.close(ready)


def deep(line):
    line.sendall(b"[" * 10_000)


def huge(line):
    for _ in range(1000):
        line.sendall(b'{"0": 1}' * 1000)


def slow(line):
    for _ in range(1000):
        line.sendall(b" ")
        time.sleep(0.05)


def silent(line):
    line.recv(1)  # until the asker hangs up


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        (deep, "answered with something that is not JSON"),
        (huge, "answered with more than 16384 bytes"),
        (slow, "did not answer in time"),
        (silent, "did not answer in time"),
        (lambda line: None, "answered with something that is not JSON"),
        (lambda line: line.sendall(b"\xff\xfe"), "answered with something that is not JSON"),
        (lambda line: line.sendall(b"[1]"), "answered with something that is no table of devices"),
        (lambda line: line.sendall(b'{"x": 1}'), "a device or a size that cannot be"),
        (lambda line: line.sendall(b'{"64": 1}'), "a device or a size that cannot be"),
        (lambda line: line.sendall(b'{"0": "1"}'), "a device or a size that cannot be"),
        (lambda line: line.sendall(b'{"0": -1}'), "a device or a size that cannot be"),
        (lambda line: line.sendall(b'{"0": 1e400}'), "a device or a size that cannot be"),
        (lambda line: line.sendall(b'{"0": %d}' % 2**63), "a device or a size that cannot be"),
    ],
)
def test_bad_answers_are_lines_of_the_table(reply, note, monkeypatch):
    monkeypatch.setattr(host, "_TIMEOUT", 0.3)
    with answering(reply):
        (seen,) = host.processes()
    assert seen.pid == os.getpid() and seen.memory == {} and note in seen.note


def test_the_table_shows_them(monkeypatch):
    found = [
        host.Process(7, "[red]x", {}, "answered with [nonsense]"),
        host.Process(8, "y", {2: 2**20}),
    ]
    monkeypatch.setattr(host, "processes", lambda: found)
    result = CliRunner().invoke(main, ["info"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "[red]x" in result.output and "answered with [nonsense]" in result.output
    told = json.loads(CliRunner().invoke(main, ["info", "--json"]).stdout)["processes"]
    assert told[0]["note"] == "answered with [nonsense]" and told[1]["memory"] == {"2": 2**20}


def test_all_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(host, "_TIMEOUT", 0.2)
    monkeypatch.setattr(host, "_TOTAL_TIMEOUT", 0.3)
    with contextlib.ExitStack() as stack:
        for number in range(4):
            stack.enter_context(answering(silent, f"{os.geteuid()}/{number}"))
        notes = sorted(process.note for process in host.processes())
    assert len(notes) == 4 and notes[-1] == "not asked, others took too long"


@pytest.mark.parametrize("name", ["x/1", "1", "0/1/2", "-1/1", "0/x", "99999999999/1", ""])
def test_names_that_are_none(name):
    with answering(lambda line: line.sendall(b"{}"), name or "/"):
        assert host.processes() == []


@as_root
def test_a_name_of_another_user_is_not_believed():
    """Root asks everybody, but who claims to be somebody else is no answer."""
    with answering(lambda line: line.sendall(b"{}"), "12345/1"):
        assert host.processes() == []


@as_root
def test_other_users_are_told_nothing():
    host.announce(lambda: {0: 5})
    program = f"""
import os, socket
os.setuid(12345)
line = socket.socket(socket.AF_UNIX)
line.connect("\\0{host._PREFIX}/0/{os.getpid()}")
print(line.recv(100))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == "b''\n"


def test_where_no_socket_can_be_the_device_still_works(monkeypatch):
    with answering(silent):  # the name is taken
        host.announce(dict)
    assert host.processes() == []


def test_names_of_processes_are_plain(tmp_path):
    assert host._name(2**31 - 1) == "?"
    comm = f"/proc/self/task/{threading.get_native_id()}/comm"
    before = host.Path(comm).read_bytes()
    with open(comm, "wb") as file:
        file.write(b"a\x1b[31mb")
    try:
        assert host._name(os.getpid()) == "a?[31mb"
    finally:
        with open(comm, "wb") as file:
            file.write(before)
