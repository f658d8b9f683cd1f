"""torch_npu.utils.save_async: drafts, links, pipes, modes and forks."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator

import pytest
import torch

import torch_npu  # noqa: F401
from tests.forking import program
from torch_npu.utils import serialization
from torch_npu.utils.serialization import save_async


@pytest.fixture(autouse=True)
def _no_failures() -> Iterator[None]:
    yield
    serialization._wait()
    serialization._failed.clear()


def drafts(folder):
    return [path for path in folder.iterdir() if path.name.startswith(".save_async.")]


def test_drafts_that_are_written_stay(tmp_path):
    """As another process of this user would hold it: open, and locked."""
    import fcntl

    mine, foreign = tmp_path / f".save_async.{'0' * 32}", tmp_path / ".save_async.notes"
    foreign.touch()
    with open(mine, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save_async(1, tmp_path / "x.pt")
        serialization._wait()
        assert mine.exists()
    save_async(1, tmp_path / "x.pt")
    serialization._wait()
    assert not mine.exists() and foreign.exists()


def test_drafts_that_are_links_are_not_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "precious").write_text("text")
    (tmp_path / "folder" / f".save_async.{'0' * 32}").symlink_to(tmp_path / "precious")
    save_async(1, tmp_path / "folder" / "x.pt")
    serialization._wait()
    assert (tmp_path / "precious").read_text() == "text"


FORKS = """
        def save(name):
            torch_npu.utils.save_async(torch.full((3,), 7.0), name)

        save("parent.pt")  # the parent has its thread
        torch_npu.utils.serialization._wait()
"""


@pytest.mark.parametrize("first", ["", FORKS])
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_a_forked_process_saves(tmp_path, how, first):
    child = {
        "os.fork": """
        child = os.fork()
        if child == 0:
            torch_npu.utils.save_async(torch.full((3,), 7.0), "child.pt")
        else:
            assert os.waitpid(child, 0)[1] == 0
        """,
        "multiprocessing": """
        import multiprocessing
        process = multiprocessing.get_context("fork").Process(
            target=torch_npu.utils.save_async, args=(torch.full((3,), 7.0), "child.pt"))
        process.start()
        process.join()
        assert process.exitcode == 0
        """,
    }[how]
    done = program(tmp_path, first + child)
    assert done.returncode == 0, done.stderr
    assert torch.load(tmp_path / "child.pt").tolist() == [7, 7, 7]


def test_a_forked_process_tells_its_failures(tmp_path):
    done = program(
        tmp_path,
        FORKS
        + """
        import multiprocessing
        process = multiprocessing.get_context("fork").Process(
            target=torch_npu.utils.save_async, args=(1, "missing/child.pt"))
        process.start()
        process.join()
        """,
    )
    assert done.stderr.count("missing/child.pt failed") == 1


def test_a_fork_does_not_write_what_its_parent_has_to(tmp_path):
    done = program(
        tmp_path,
        """
        import threading
        serialization = torch_npu.utils.serialization
        gate, write, wrote = threading.Event(), serialization._write_archive, []
        def wait(*args):
            gate.wait()
            wrote.append(os.getpid())
            write(*args)
        serialization._write_archive = wait
        torch_npu.utils.save_async(1, "x.pt")
        child = os.fork()
        gate.set()
        serialization._wait()
        assert len(wrote) == (child != 0), wrote
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
    )
    assert done.returncode == 0, done.stderr


def test_links_stay_links(tmp_path):
    (tmp_path / "real.pt").write_text("old")
    (tmp_path / "there").mkdir()
    (tmp_path / "link.pt").symlink_to("real.pt")
    (tmp_path / "dangling.pt").symlink_to("there/new.pt")
    save_async(1, tmp_path / "link.pt")
    save_async(2, tmp_path / "dangling.pt")
    serialization._wait()
    assert (tmp_path / "link.pt").is_symlink() and torch.load(tmp_path / "real.pt") == 1
    assert (tmp_path / "dangling.pt").is_symlink() and torch.load(tmp_path / "there/new.pt") == 2


def test_devices_and_pipes_are_written_to(tmp_path):
    save_async(1, os.devnull)
    serialization._wait()
    assert not serialization._failed and not os.path.isfile(os.devnull)
    os.mkfifo(tmp_path / "pipe")
    read = []

    def reader():
        read.append((tmp_path / "pipe").read_bytes())

    thread = threading.Thread(target=reader)
    thread.start()
    save_async({"a": torch.ones(5, device="npu")}, tmp_path / "pipe")
    thread.join()
    serialization._wait()
    assert torch.load(io.BytesIO(read[0]))["a"].tolist() == [1] * 5
    assert (tmp_path / "pipe").is_fifo()


def test_folders_fail_as_with_torch_save(tmp_path):
    with pytest.raises(RuntimeError) as direct:
        torch.save(1, tmp_path)
    save_async(1, tmp_path)
    serialization._wait()
    with pytest.raises(RuntimeError, match="an earlier save to .* failed") as later:
        save_async(1, tmp_path)
    assert type(later.value.__cause__) is type(direct.value)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_the_mode_stays(tmp_path, mode):
    path = tmp_path / "x.pt"
    path.touch()
    path.chmod(mode)
    save_async(1, path)
    serialization._wait()
    assert path.stat().st_mode & 0o777 == mode and torch.load(path) == 1


def test_a_new_file_has_the_mode_that_torch_save_gives(tmp_path):
    torch.save(1, tmp_path / "theirs.pt")
    save_async(1, tmp_path / "mine.pt")
    serialization._wait()
    assert (tmp_path / "mine.pt").stat().st_mode == (tmp_path / "theirs.pt").stat().st_mode


def test_long_names(tmp_path):
    path = tmp_path / ("n" * 252 + ".pt")
    save_async(1, path)
    serialization._wait()
    assert torch.load(path) == 1
