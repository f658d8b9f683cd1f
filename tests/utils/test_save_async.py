"""torch_npu.utils.save_async: the same as torch.save, later."""

from __future__ import annotations

import io
import pickle
import signal
import threading
import zipfile
from collections.abc import Iterator

import pytest
import torch

import torch_npu
from tests.forking import program
from tests.utils.test_save_async_files import drafts
from torch_npu.utils import serialization
from torch_npu.utils.serialization import save_async


@pytest.fixture(autouse=True)
def _no_failures() -> Iterator[None]:
    yield
    serialization._wait()
    serialization._failed.clear()


@pytest.fixture
def slow(monkeypatch) -> Iterator[threading.Event]:
    """Writes wait until the event is set."""
    gate = threading.Event()
    write = serialization._write_archive

    def wait(*args):
        assert gate.wait(60)
        write(*args)

    monkeypatch.setattr(serialization, "_write_archive", wait)
    yield gate
    gate.set()


def test_what_is_loaded_is_what_torch_save_saves(tmp_path):
    shared = torch.arange(12.0, device="npu")
    value = {
        "a": shared, "view": shared[2:5], "host": torch.ones(3), "half": torch.ones(2, device="npu").half(), "n": [1, "x"],
    }  # fmt: skip
    torch.save(value, tmp_path / "sync.pt")
    save_async(value, tmp_path / "async.pt")
    serialization._wait()
    one, two = (torch.load(tmp_path / name) for name in ("sync.pt", "async.pt"))
    for key in ("a", "view", "host", "half"):
        assert torch.equal(one[key], two[key]) and one[key].device == two[key].device
        assert one[key].stride() == two[key].stride() and one[key].dtype == two[key].dtype
    assert two["view"].data_ptr() == two["a"].data_ptr() + 2 * 4 and two["n"] == [1, "x"]


def test_the_archive_holds_the_same_bytes(tmp_path):
    value = {"a": torch.arange(12.0, device="npu"), "host": torch.ones(3), "n": [1, "x"]}
    torch.save(value, tmp_path / "x.pt")
    (tmp_path / "async").mkdir()
    save_async(value, tmp_path / "async" / "x.pt")
    serialization._wait()
    mine, theirs = (zipfile.ZipFile(path) for path in (tmp_path / "async/x.pt", tmp_path / "x.pt"))
    inside = [{n.split("/", 1)[1]: z.read(n) for n in z.namelist()} for z in (mine, theirs)]
    for records in inside:
        records.pop(".data/serialization_id")  # a hash of the order in which records were written
    assert inside[0] == inside[1]


def test_the_call_returns_before_the_write_ends(tmp_path, slow):
    save_async(torch.ones(3, device="npu"), tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()
    slow.set()
    serialization._wait()
    assert (tmp_path / "x.pt").exists()


def test_later_changes_are_not_saved(tmp_path, slow):
    device, host = torch.ones(3, device="npu"), torch.ones(3)
    values = [1]
    save_async([device, host, values], tmp_path / "x.pt")
    device.zero_()
    host.zero_()
    values.append(2)
    slow.set()
    serialization._wait()
    one, two, three = torch.load(tmp_path / "x.pt")
    assert one.tolist() == two.tolist() == [1, 1, 1] and three == [1]


def test_several_in_flight_and_the_last_one_wins(tmp_path, slow):
    for number in range(4):
        save_async(torch.full((2,), number, device="npu"), tmp_path / f"{number}.pt")
        save_async(number, tmp_path / "same.pt")
    slow.set()
    serialization._wait()
    assert [torch.load(tmp_path / f"{n}.pt")[0].item() for n in range(4)] == [0, 1, 2, 3]
    assert torch.load(tmp_path / "same.pt") == 3


def test_the_form_with_a_model(tmp_path, slow):
    model = torch.nn.Linear(4, 2, device="npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    kept = []
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4, device="npu")).sum().backward()
        optimizer.step()
        kept.append(model.weight.detach().clone())
        save_async(model, tmp_path / f"{step}.pt", model=model)
    slow.set()
    serialization._wait()
    for step, weight in enumerate(kept):
        loaded = torch.load(tmp_path / f"{step}.pt", weights_only=False)
        assert isinstance(loaded, torch.nn.Linear) and torch.equal(loaded.weight, weight)


def test_files_that_are_open(tmp_path):
    value = torch.ones(2, device="npu")
    mine, theirs = io.BytesIO(), io.BytesIO()
    save_async(value, mine, _disable_byteorder_record=True)
    torch.save(value, theirs, _disable_byteorder_record=True)
    serialization._wait()
    assert zipfile.ZipFile(mine).namelist() == zipfile.ZipFile(theirs).namelist()
    mine.seek(0)
    assert torch.load(mine).tolist() == [1, 1]


def test_pickle_module_and_protocol(tmp_path):
    save_async({"a": 1}, tmp_path / "x.pt", pickle_module=pickle, pickle_protocol=4)
    serialization._wait()
    data = zipfile.ZipFile(tmp_path / "x.pt")
    (name,) = [n for n in data.namelist() if n.endswith("data.pkl")]
    assert data.read(name)[:2] == b"\x80\x04"


def test_an_error_surfaces_at_the_next_call(tmp_path):
    save_async(1, tmp_path / "none" / "x.pt")
    serialization._wait()
    with pytest.raises(RuntimeError, match="an earlier save to .*none/x.pt failed"):
        save_async(2, tmp_path / "y.pt")
    save_async(3, tmp_path / "y.pt")
    serialization._wait()
    assert torch.load(tmp_path / "y.pt") == 3


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    save_async(1, tmp_path / "x.pt")
    serialization._wait()

    def fail(snapshot, target):
        target.write(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(serialization, "_write_archive", fail)
    save_async(2, tmp_path / "x.pt")
    serialization._wait()
    assert torch.load(tmp_path / "x.pt") == 1 and [p.name for p in tmp_path.iterdir()] == ["x.pt"]
    with pytest.raises(RuntimeError, match="the disk is full"):
        save_async(3, tmp_path / "x.pt")


def test_what_cannot_be_pickled_fails_at_once(tmp_path):
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle|local"):
        save_async(lambda: 1, tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"_use_new_zipfile_serialization": False},
            RuntimeError,
            "_use_new_zipfile_serialization must be True",
        ),
        ({"model": 3}, TypeError, "model must be a torch.nn.Module, but received int"),
        ({"f": 3}, TypeError, "f must be a path or a file, but received int"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        save_async(1, **{"f": tmp_path / "x.pt", **arguments})


def test_the_interpreter_waits_and_tells_failures(tmp_path):
    done = program(
        tmp_path,
        """
        for n in range(5):
            torch_npu.utils.save_async(torch.full((1000,), n, device="npu"), f"{n}.pt")
        torch_npu.utils.save_async(1, "missing/x.pt")
        """,
    )
    assert done.returncode == 0
    assert "missing/x.pt failed" in done.stderr
    assert [torch.load(tmp_path / f"{n}.pt")[0].item() for n in range(5)] == [0, 1, 2, 3, 4]


def test_a_killed_process_leaves_no_half_file(tmp_path):
    done = program(
        tmp_path,
        """
        import signal, threading, time
        torch_npu.utils.save_async(torch.ones(1000), "x.pt")
        torch_npu.utils.serialization._wait()
        big = torch.ones(30_000_000, device="npu")
        torch_npu.utils.save_async(big, "x.pt")
        while not any(name.startswith(".save_async.") for name in os.listdir(".")):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.returncode == -signal.SIGKILL
    assert torch.load(tmp_path / "x.pt").numel() == 1000
    assert len(drafts(tmp_path)) == 1
    save_async(1, tmp_path / "y.pt")  # the next save there clears up
    serialization._wait()
    assert drafts(tmp_path) == []


def test_it_is_public():
    assert torch_npu.utils.save_async is save_async
