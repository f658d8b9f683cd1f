"""Recordings and dumps of strangers: nothing in them runs, and what is wrong with them is said in a line."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import torch_npu  # noqa: F401
from softnpu import cli, golden
from tests.golden.test_msprobe import Dumping


def replayed(folder: Path, *options: str) -> str:
    """What the command prints; it must not end with a traceback."""
    command = ["golden", "replay", str(folder), "--all", *options]
    result = CliRunner().invoke(cli.main, command, env={"COLUMNS": "900"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1, result.output
    return " ".join(result.output.split())


class Planted:
    def __reduce__(self):
        return os.mkdir, ("planted",)


# --- dumps of msprobe ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Torch.os.mkdir.0.forward", ["planted"]),
        ("Torch.os.system.0.forward", ["mkdir planted"]),
        ("Torch.load.0.forward", ["file.pt"]),
        ("Torch.hub.load.0.forward", ["x/y", "z"]),
        ("Torch.from_file.0.forward", ["planted", True, 8]),
        ("Torch.__builtins__.__getitem__.0.forward", ["exec"]),
        ("Aten.from_file.0.forward", ["planted", True, 8]),
        ("Aten._dir.append.0.forward", ["x"]),
        ("NPU.os.mkdir.0.forward", ["planted"]),
        ("NPU.sys.exit.0.forward", [0]),
        ("Functional.importlib.import_module.0.forward", ["antigravity"]),
        ("Functional.torch.os.mkdir.0.forward", ["planted"]),
        ("Tensor.__init_subclass__.__self__.mro.0.forward", []),
        ("VF.vf.from_file.0.forward", ["planted", True, 8]),
    ],
)
def test_a_dump_calls_nothing_but_operators(tmp_path, monkeypatch, name, arguments):
    monkeypatch.chdir(tmp_path)
    dump = Dumping(tmp_path / "dump")
    dump.forward(name, arguments, {}, torch.ones(1))
    text = replayed(dump.close())
    assert "missing" in text or "opens files" in text
    assert not Path("planted").exists()


def test_a_dump_reads_no_other_files(tmp_path):
    dump = Dumping(tmp_path / "dump")
    dump.forward("Torch.neg.0.forward", [torch.ones(1)], {}, -torch.ones(1))
    torch.save(torch.ones(1), tmp_path / "other.pt")
    dump.data["Torch.neg.0.forward"]["input_args"][0]["data_name"] = "../../other.pt"
    assert "has no file ../../other.pt in dump_tensor_data" in replayed(dump.close())


@pytest.mark.parametrize(
    "what", ["pickle", "object array", "rubbish", "empty", "not a tensor", "pipe"]
)
def test_files_of_a_dump_that_are_no_tensors(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    dump = Dumping(tmp_path / "dump", "npy" if what == "object array" else "pt")
    dump.forward("Torch.neg.0.forward", [torch.ones(1)], {}, -torch.ones(1))
    folder = dump.close()
    # inputs for a replay, outputs for a comparison
    for path in (folder / "dump_tensor_data").iterdir():
        path.unlink()
        if what == "pipe":
            os.mkfifo(path)
        elif what == "object array":
            np.save(path, np.array([Planted()]), allow_pickle=True)
        elif what == "not a tensor":
            torch.save([1, 2], path)
        else:
            content = {"pickle": pickle.dumps(Planted(), 2), "rubbish": b"x" * 99, "empty": b""}
            path.write_bytes(content[what])
    text = replayed(folder)
    assert "has no file" in text if what == "pipe" else "holds no tensor" in text
    assert not Path("planted").exists()
    result = CliRunner().invoke(cli.main, ["diff", str(folder), str(folder)])
    assert isinstance(result.exception, SystemExit) and "Error: " in result.output


@pytest.mark.parametrize(
    "data",
    [
        {"Torch.neg.0.forward": [1, 2]},
        {
            "Torch.neg.0.forward": {
                "input_args": 3,
                "output": {"type": "torch.Tensor", "data_name": "x.pt"},
            }
        },
        {"Torch.neg.0.forward": {"input_args": [{"type": "torch.memory_format"}]}},
        {"Torch.neg.0.forward": {"input_kwargs": []}},
        {"no name": {}},
        [],
    ],
)
def test_dumps_that_are_none(tmp_path, data):
    (tmp_path / "dump.json").write_text(json.dumps({"data": data}))
    result = CliRunner().invoke(cli.main, ["golden", "replay", str(tmp_path)])
    assert isinstance(result.exception, SystemExit) and result.output.startswith("Error: ")


@pytest.mark.parametrize("file", ["dump.json", "stack.json", "index.json"])
def test_json_of_no_end(tmp_path, file):
    (tmp_path / "dump.json").write_text('{"data": {}}')
    (tmp_path / file).write_text("[" * 100_000)
    result = CliRunner().invoke(cli.main, ["golden", "replay", str(tmp_path)])
    assert isinstance(result.exception, SystemExit) and "is not JSON" in result.output


# --- recordings ------------------------------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path):
    with golden.record(tmp_path / "golden", ops="aten::add"):
        torch.ones(2, 3, device="npu") + torch.ones(2, 3, device="npu")
    return tmp_path / "golden"


def changed(folder: Path, change) -> Path:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("op", "overload", "arguments"),
    [
        ("load_library::__func__", "__call__", ["x", "planted.so"]),
        ("import_module::__call__", "__call__", ["antigravity"]),
        ("__class__::__subclasses__", "__call__", []),
        ("aten::from_file", "", ["planted", True, 8]),
        ("aten::from_file", "out", ["planted", True, 8]),
        ("aten::__init__", "__globals__", []),
    ],
)
def test_a_recording_calls_nothing_but_operators(recording, monkeypatch, op, overload, arguments):
    monkeypatch.chdir(recording)

    def change(index):
        index["calls"][0].update(op=op, overload=overload, args=arguments, kwargs={})

    text = replayed(changed(recording, change))
    assert "there is no operator" in text or "opens files" in text
    assert not Path("planted").exists()


def first(index):
    return next(iter(index["tensors"].values()))


def nested(index):
    value: list = []
    for _ in range(400):
        value = [value]
    index["calls"][0]["args"] = [{"tuple": value}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: first(i).update(file="../../../etc/passwd"), "is in no file of the recording"),
        (lambda i: first(i).update(file="/etc/passwd"), "is in no file of the recording"),
        (lambda i: first(i).update(file=None), "is in no file of the recording"),
        (lambda i: first(i).update(shape=[-1]), "has no shape"),
        (lambda i: first(i).update(shape="x"), "has no shape"),
        (lambda i: first(i).update(shape=[2**40]), "has no float32[1099511627776] of name"),
        (lambda i: first(i).update(dtype="load"), "'load' is not a dtype of torch"),
        (lambda i: first(i).update(dtype=3), "has no size or no dtype"),
        (lambda i: i.update(tensors=[]), "it has no tensors"),
        (lambda i: i.update(calls={}), "it has no calls"),
        (lambda i: i.update(version=None), "has version None"),
        (lambda i: i["calls"][0].pop("written"), "call 0 has no written"),
        (lambda i: i["calls"].append(3), "call 1 has no seq"),
        (lambda i: i["calls"][0].update(op=3), "call 0 has no op"),
        (lambda i: i["calls"][0].update(args=[{"tensor": "x"}]), "has no tensor x"),
        (lambda i: i["calls"][0].update(args=[{"dtype": "load"}]), "'load' is not a dtype"),
        (lambda i: i["calls"][0].update(args=[{"torch": "os"}]), "'os' is not a layout"),
        (lambda i: i["calls"][0].update(args=[{"what": 1}]), "value of unknown kind 'what'"),
        (lambda i: i["calls"][0]["args"][0].update(stride=[-3, 1]), "failed"),
        (lambda i: i["calls"][0]["args"][0].update(stride=[2**60, 1]), "failed"),
        (lambda i: i["calls"][0]["args"][0].update(format=77), "failed"),
        (lambda i: i["calls"][0].update(op="[/red]::[bold]"), "there is no operator [/red]::[bold]"),
        (nested, "failed"),
    ],
)  # fmt: skip
def test_indices_that_lie(recording, change, message):
    assert message in replayed(changed(recording, change))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 100,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ],
)
def test_files_that_lie(recording, content):
    (path,) = recording.glob("*.safetensors")
    path.write_bytes(content)
    text = replayed(recording)
    assert "is not a safetensors file" in text or "has no tensor" in text


@pytest.mark.parametrize(
    "offsets", [[0, 2**62], [-8, 16], [2**40, 2**40 + 24], ["a", "b"], [24, 0], 7]
)
def test_offsets_that_lie(recording, offsets):
    (path,) = recording.glob("*.safetensors")
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    for entry in header.values():
        entry["data_offsets"] = offsets
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    text = replayed(recording)
    assert any(t in text for t in ("of name", "ends before the data", "has no tensor"))
