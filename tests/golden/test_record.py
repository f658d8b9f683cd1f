"""Recordings: what is in them, how large they get, how they continue, and where they can be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

import torch_npu
from softnpu import cli, golden
from softnpu.golden import _files, _store, _values


def rms(x: torch.Tensor) -> torch.Tensor:
    return torch_npu.npu_rms_norm(x, torch.ones(x.shape[-1], device="npu", dtype=x.dtype))[0]


def only(path):
    (run,) = golden.load(path).values()
    return run


def test_a_call_has_its_inputs_attributes_outputs_and_place(tmp_path):
    x = torch.randn(4, 8, device="npu")
    with golden.record(tmp_path / "r"):
        out = torch_npu.npu_rms_norm(x, torch.ones(8, device="npu"), epsilon=1e-5)
        x + x  # not chosen
    run = only(tmp_path / "r")
    (call,) = run.calls
    assert call["op"] == "npu::npu_rms_norm" and 1e-5 in [*call["args"], *call["kwargs"].values()]
    assert torch.equal(run.tensor(run.inputs(call)[0][1]), x.cpu())
    assert [torch.equal(run.tensor(e), o.cpu()) for (_, e), o in zip(run.outputs(call), out)] == [
        True
    ] * 2
    assert call["source"]["file"] == __file__ and "npu_rms_norm(x" in call["source"]["text"]
    made = run.about["made_by"]
    assert made["emulated"] is True and made["device"].startswith("Ascend910B3")
    assert run.about["complete"] is True


def test_the_files_are_safetensors(tmp_path):
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64, torch.bool,
              torch.uint8, torch.float8_e4m3fn, torch.complex64]  # fmt: skip
    with golden.record(tmp_path / "r", ops="aten::clone"):
        given = [torch.arange(6).reshape(2, 3).to(dtype) for dtype in dtypes]
        for tensor in given:
            tensor.clone()
    run = only(tmp_path / "r")
    (file,) = (tmp_path / "r").glob("*.safetensors")
    read = safetensors.torch.load_file(file)
    assert len(read) == len(dtypes) == len(run.tensors)
    for call, tensor in zip(run.calls, given):
        entry = run.inputs(call)[0][1]
        assert torch.equal(run.tensor(entry).view(torch.uint8), tensor.view(torch.uint8))
        if not tensor.is_complex():
            assert torch.equal(read[entry["tensor"]].view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.arange(3.0).reshape(3, 1).expand(3, 5),
        lambda: torch.arange(24.0).reshape(4, 6)[::2, 1::2],
        lambda: torch.tensor(3.0),
        lambda: torch.empty(0, 3),
        lambda: torch.empty(3, 0).t(),
    ],
)
def test_strides_survive(make):
    kept = {}
    given = make()
    entry = _values.encode(given, lambda t: kept.setdefault("x", t) is None or "x")
    again = _values.decode(entry, lambda e: kept["x"].contiguous(), "cpu")
    assert torch.equal(again, given) and again.shape == given.shape
    assert not given.numel() or again.stride() == given.stride()


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5, float("inf"), "BSH", [1, [2, None]], (1, 2), 1 + 2j, torch.bfloat16, torch.strided,
     torch.channels_last, torch.device("cpu"), {"a": (1,)}],
)  # fmt: skip
def test_attributes_survive_json(value):
    encoded = json.loads(json.dumps(_values.encode(value, str)))
    assert _values.decode(encoded, lambda e: e, "cpu") == value


def test_written_arguments_are_recorded_before_and_after(tmp_path):
    x = torch.zeros(3, device="npu")
    with golden.record(tmp_path / "r", ops="aten::add_"):
        x.add_(1)
        x.add_(1)
    run = only(tmp_path / "r")
    first, second = run.calls
    assert run.tensor(run.inputs(second)[0][1]).tolist() == [1, 1, 1]
    assert run.tensor(dict(run.outputs(second))["written 0"]).tolist() == [2, 2, 2]
    assert first["written"]["0"]["tensor"] == second["args"][0]["tensor"], (
        "the same content is kept once"
    )
    assert len(run.tensors) == 3


def test_views_and_uninitialized_tensors_are_left_out(tmp_path):
    with golden.record(tmp_path / "r", ops="*") as recorder:
        torch.empty(3, device="npu").view(3, 1).t()
    assert recorder.seen == 0 and only(tmp_path / "r").calls == []


class Plain(torch.Tensor):
    """As a program may write one."""


def test_tensors_of_a_class_of_the_program(tmp_path):
    x = torch.ones(2, 4, device="npu").as_subclass(Plain)
    with golden.record(tmp_path / "g"):
        torch_npu.npu_swiglu(x)
    (call,) = json.loads((tmp_path / "g" / _store.INDEX).read_text("utf-8"))["calls"]
    assert call["op"].endswith("npu_swiglu") and "error" not in call


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def forward(self, x, *, scale):
        return self.inner(x) * scale


def test_modules_lines_and_backward(tmp_path):
    model = Block().npu()
    with golden.record(tmp_path / "r", ops="*", modules=True):
        model(
            torch.ones(2, 4, device="npu"), scale=torch.tensor(2.0, device="npu")
        ).sum().backward()
    calls = only(tmp_path / "r").calls
    places = {(c["op"], c["module"], c["phase"]) for c in calls}
    assert ("aten::addmm", "Block.inner.0", "forward") in places
    assert ("aten::relu", "Block.inner.1", "forward") in places
    assert ("aten::mm", "Block.inner.0", "backward") in places
    assert ("aten::threshold_backward", "Block.inner.1", "backward") in places
    (whole,) = [c for c in calls if c["op"] == "module::Block"]
    assert "scale" in whole["kwargs"], "keyword arguments of modules are inputs"
    product = next(c for c in calls if c["op"] == "aten::mul" and c["phase"] == "backward")
    assert product["source"]["text"] == "return self.inner(x) * scale"


def test_the_limit_and_how_a_run_continues(tmp_path):
    def program() -> None:
        for number in range(5):
            rms(torch.full((64, 64), float(number + 1), device="npu"))

    # An input and gamma of 16 KiB and 256 bytes, an output and rstd: about 17 KiB for each call.
    with pytest.warns(UserWarning, match="is full"), golden.record(tmp_path / "r", limit="40KiB"):
        program()
    run = only(tmp_path / "r")
    stored = sum(t["bytes"] for t in run.tensors.values())
    assert 0 < len(run.calls) < 5 and stored <= 40 * 2**10
    assert run.about["left_out"] == 5 - len(run.calls) and not run.about["complete"]
    with pytest.raises(FileExistsError, match="resume=True"), golden.record(tmp_path / "r"):
        pass
    with golden.record(tmp_path / "r", resume=True):
        program()
    again = only(tmp_path / "r")
    assert [c["seq"] for c in again.calls] == list(range(5)) and again.about["complete"]
    assert again.calls[: len(run.calls)] == run.calls
    assert {r.status for r in golden.replay(tmp_path / "r")} == {"same"}


def test_a_program_that_was_killed_keeps_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(_store, "_SHARD", 1)
    with pytest.raises(KeyError), golden.record(tmp_path / "r"):
        rms(torch.ones(2, 8, device="npu"))
        assert len(only(tmp_path / "r").calls) == 1, "it is on disk before the end"
        raise KeyError
    assert not only(tmp_path / "r").about["complete"]
    with golden.record(tmp_path / "r", resume=True):
        rms(torch.ones(2, 8, device="npu"))
        rms(torch.ones(2, 16, device="npu"))
    assert len(only(tmp_path / "r").calls) == 2


def test_another_program_cannot_continue(tmp_path):
    with golden.record(tmp_path / "r"):
        rms(torch.ones(2, 8, device="npu"))
    message = "call 0 is npu::npu_swiglu, in the recording it is npu::npu_rms_norm"
    with (
        pytest.raises(RuntimeError, match=message),
        golden.record(tmp_path / "r", resume=True),
    ):
        torch_npu.npu_swiglu(torch.ones(2, 8, device="npu"))
    with (
        pytest.raises(ValueError, match="can only be continued with the same"),
        golden.record(tmp_path / "r", ops="*", resume=True),
    ):
        pass


def test_at_most_so_many_of_each(tmp_path):
    with golden.record(tmp_path / "r", ops="npu_rms_norm,npu_swiglu", each=2):
        for _ in range(4):
            rms(torch.ones(2, 8, device="npu"))
        torch_npu.npu_swiglu(torch.ones(2, 8, device="npu"))
    run = only(tmp_path / "r")
    assert [c["op"] for c in run.calls] == ["npu::npu_rms_norm"] * 2 + ["npu::npu_swiglu"]
    assert run.about["left_out"] == 2


@pytest.mark.parametrize(
    "options,message",
    [
        ({"limit": "much"}, "limit must be a size"),
        ({"each": 0}, "each must be"),
        ({"ops": ""}, "ops must name"),
    ],
)
def test_wrong_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message), golden.record(tmp_path / "r", **options):
        pass


@pytest.mark.parametrize("text", ["", "{}", '{"format": "softnpu-golden", "version": 9}'])
def test_what_is_no_recording(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(ValueError, match="index.json"):
        golden.load(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="neither a recording"):
        golden.load(tmp_path / "empty")


def test_a_file_that_is_cut_off(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"123")
    with pytest.raises(ValueError, match="not a safetensors file"):
        _files.Reader(tmp_path / "x.safetensors")


PROGRAM = """
import sys
import torch

torch.ops.aten.softmax.int(torch.ones(int(sys.argv[1])), 0)
assert "softnpu._C" not in sys.modules and "torch_npu" not in sys.modules
import softnpu
assert softnpu.__file__.startswith(sys.argv[2]), softnpu.__file__
"""


def test_the_recorder_in_one_file_needs_torch_alone(tmp_path):
    """As on a machine with a card, where softnpu is not installed; here a program on the CPU stands for it."""
    packed = tmp_path / "recorder.pyz"
    done = CliRunner().invoke(cli.main, ["golden", "pack", "-o", str(packed)])
    assert done.exit_code == 0, done.output
    (tmp_path / "prog.py").write_text(PROGRAM)
    environment = {"PATH": os.environ["PATH"], "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [
        sys.executable,
        str(packed),
        "record",
        "-o",
        "out",
        "--ops",
        "*softmax*",
        "prog.py",
        "5",
        str(packed),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "out: 1 calls" in done.stderr
    (call,) = only(tmp_path / "out").calls
    assert call["op"] == "aten::_softmax" and call["source"]["line"] == 5
    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (
        again.returncode == 1
        and "holds a recording" in again.stderr
        and "Traceback" not in again.stderr
    )


def test_importing_loads_neither_torch_nor_the_extension():
    program = "import sys, softnpu.golden; assert not {'torch', 'softnpu._C', 'torch_npu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
