"""Dumps of msprobe: reading .pt and .npy, APIs and modules; and writing what `msprobe compare` reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import torch_npu
from softnpu import cli, golden
from softnpu.golden import _msprobe


class Dumping:
    """Writes a dump by the format that msprobe's pages describe."""

    def __init__(self, directory: Path, suffix: str = "pt") -> None:
        self.directory, self.suffix = directory, suffix
        self.data: dict = {}
        (directory / "dump_tensor_data").mkdir(parents=True)

    def tensor(self, value: torch.Tensor, name: str) -> dict:
        file = f"{name}.{self.suffix}"
        path = self.directory / "dump_tensor_data" / file
        host = value.detach().cpu()
        if self.suffix == "npy":
            np.save(path, (host.float() if host.dtype == torch.bfloat16 else host).numpy())
        else:
            torch.save(host, path)
        return {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape), "Max": 0.0, "Min": 0.0,
                "Mean": 0.0, "Norm": 0.0, "requires_grad": value.requires_grad, "data_name": file}  # fmt: skip

    def value(self, value, name: str):
        if isinstance(value, torch.Tensor):
            return self.tensor(value, name)
        if isinstance(value, (list, tuple)):
            return [self.value(v, f"{name}.{i}") for i, v in enumerate(value)]
        if isinstance(value, torch.dtype):
            return {"type": "torch.dtype", "value": str(value)}
        return None if value is None else {"type": type(value).__name__, "value": value}

    def forward(self, name: str, args, kwargs, output, **parameters) -> None:
        entry = {
            "input_args": self.value(args, f"{name}.input"),
            "input_kwargs": {k: self.value(v, f"{name}.input.{k}") for k, v in kwargs.items()},
            "output": self.value(output, f"{name}.output"),
        }
        if parameters:
            entry["parameters"] = {
                k: self.tensor(v, f"{name}.parameters.{k}") for k, v in parameters.items()
            }
        self.data[name] = entry

    def backward(self, name: str, grads, outputs) -> None:
        self.data[name] = {
            "input": self.value(grads, f"{name}.input"),
            "output": self.value(outputs, f"{name}.output"),
        }

    def close(self, level: str = "L1") -> Path:
        whole = {
            "task": "tensor",
            "level": level,
            "framework": "pytorch",
            "dump_data_dir": "/gone",
            "data": self.data,
        }
        (self.directory / "dump.json").write_text(json.dumps(whole))
        stack = {"0": [list(self.data), ["File model.py, line 12, in forward, \n x = f(x)"]]}
        (self.directory / "stack.json").write_text(json.dumps(stack))
        return self.directory


def api_dump(directory: Path, suffix: str = "pt", wrong: float = 0.0) -> Path:
    torch.manual_seed(0)
    dump = Dumping(directory, suffix)
    x, gamma = torch.randn(4, 8), torch.ones(8)
    y, rstd = torch_npu.npu_rms_norm(x.npu(), gamma.npu(), epsilon=1e-5)
    dump.forward("NPU.npu_rms_norm.0.forward", [x, gamma], {"epsilon": 1e-5}, [y + wrong, rstd])
    w = torch.randn(6, 8, requires_grad=True)
    z = x.clone().requires_grad_()
    out = torch.nn.functional.linear(z.npu(), w.npu())
    dump.forward("Functional.linear.0.forward", [z, w], {"bias": None}, [out])
    grad = torch.randn(4, 6)
    out.backward(grad.npu())
    dump.backward("Functional.linear.0.backward", [grad], [z.grad, w.grad])
    dump.forward("Torch.cat.0.forward", [[x, x]], {"dim": 1}, [torch.cat([x, x], dim=1)])
    dump.forward("Tensor.to.0.forward", [x, torch.bfloat16], {}, [x.to(torch.bfloat16)])
    dump.data["Distributed.all_reduce.0.forward"] = {
        "input_args": [],
        "input_kwargs": {},
        "output": [],
    }
    return dump.close()


def replay(*arguments: object, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(
        cli.main, ["golden", "replay", *map(str, arguments)]
    )
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


@pytest.mark.parametrize("suffix", ["pt", "npy"])
def test_apis_forward_and_backward(tmp_path, suffix):
    said = replay(api_dump(tmp_path / "d", suffix))
    assert "5 same" in said and "1 skipped" in said and "process group" in said
    assert "5 same" in replay(tmp_path / "d" / "dump.json")
    call = _msprobe.Dump(tmp_path / "d").calls[0]
    assert call["source"] == {
        "file": "model.py",
        "line": 12,
        "function": "forward",
        "text": "x = f(x)",
    }


def test_steps_and_ranks(tmp_path):
    for rank in (0, 1):
        api_dump(tmp_path / "step0" / f"rank{rank}")
    runs = golden.load(tmp_path)
    assert set(runs) == {"step0/rank0", "step0/rank1"}
    assert set(golden.load(tmp_path / "step0")) == {"rank0", "rank1"}


def test_a_wrong_result_is_found(tmp_path):
    found = json.loads(replay(api_dump(tmp_path / "d", wrong=0.5), "--json", code=1))
    (wrong,) = [c for c in found["calls"] if c["status"] == "beyond"]
    assert wrong["name"] == "NPU.npu_rms_norm.0.forward" and wrong["source"]["line"] == 12
    assert wrong["outputs"][0]["max_abs"] == pytest.approx(0.5, rel=1e-6)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3, padding=1)
        self.head = torch.nn.Linear(4, 3)


def net() -> Net:
    return Net().npu()


def module_dump(directory: Path, bias: float = 0.0) -> Path:
    torch.manual_seed(1)
    dump, model = Dumping(directory), Net()
    x = torch.randn(1, 1, 4, 4)
    y = torch.nn.functional.conv2d(
        x.npu(), model.conv.weight.npu(), model.conv.bias.npu(), padding=1
    )
    dump.forward(
        "Module.conv.Conv2d.forward.0", [x], {}, [y], weight=model.conv.weight, bias=model.conv.bias
    )
    z = torch.nn.functional.linear(y, model.head.weight.npu(), model.head.bias.npu()) + bias
    dump.forward(
        "Module.head.Linear.forward.0", [y], {}, [z], weight=model.head.weight, bias=model.head.bias
    )
    dump.data["Module.head.Linear.parameters_grad.0"] = {
        "bias": [dump.tensor(model.head.bias, "g")]
    }
    return dump.close("L0")


def test_modules(tmp_path):
    """A Linear is known by its parameters, a convolution needs the model."""
    dump = module_dump(tmp_path / "d")
    said = " ".join(replay(dump).split())
    assert "1 same" in said and "2 skipped" in said and "--model gives the model" in said
    said = replay(dump, "--model", "tests.golden.test_msprobe:net")
    assert "2 same" in said and "1 skipped" in said


def test_two_dumps_are_compared_module_by_module(tmp_path):
    a, b = module_dump(tmp_path / "a"), module_dump(tmp_path / "b", bias=1.0)
    found = golden.diff(a, b)
    assert found.first is not None and found.first.b["name"] == "Module.head.Linear.forward.0"
    assert golden.diff(a, a).alike


def test_statistics_alone_cannot_be_replayed(tmp_path):
    dump = Dumping(tmp_path / "d")
    dump.forward("Torch.abs.0.forward", [torch.ones(2)], {}, [torch.ones(2)])
    del dump.data["Torch.abs.0.forward"]["input_args"][0]["data_name"]
    assert "task must be tensor" in " ".join(replay(dump.close()).split())


@pytest.mark.parametrize("name", ["Torch.abs", "Torch.abs.x.forward", "Module.a.B.sideways.0"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="is not the name of an API or module"):
        _msprobe.split(name)


def test_what_is_written_is_a_dump_of_both_sides(tmp_path):
    """In the layout that `msprobe compare -tp recorded/dump.json -gp softnpu/dump.json` takes."""
    with golden.record(tmp_path / "r"):
        x = torch.randn(4, 8, device="npu")
        torch_npu.npu_rms_norm(x, torch.ones(8, device="npu"), epsilon=1e-5)
        torch_npu.npu_swiglu(x)
        torch_npu.npu_swiglu(x + 1)
    replay(tmp_path / "r", "--msprobe", tmp_path / "out")
    sides = [
        json.loads((tmp_path / "out" / s / "dump.json").read_text())
        for s in ("recorded", "softnpu")
    ]
    names = ["NPU.npu_rms_norm.0.forward", "NPU.npu_swiglu.0.forward", "NPU.npu_swiglu.1.forward"]
    for side in sides:
        assert {k: side[k] for k in ("task", "level", "framework")} == {
            "task": "tensor",
            "level": "L1",
            "framework": "pytorch",
        }
        assert list(side["data"]) == names
        first = side["data"][names[0]]
        assert set(first) == {"input_args", "input_kwargs", "output"} and len(first["output"]) == 2
        leaf = first["output"][0]
        assert leaf["data_name"] == "NPU.npu_rms_norm.0.forward.output.0.pt" and leaf["shape"] == [
            4,
            8,
        ]
        saved = torch.load(Path(side["dump_data_dir"]) / leaf["data_name"], weights_only=True)
        assert leaf["Max"] == saved.max().item() and leaf["Norm"] == pytest.approx(
            saved.norm().item()
        )
        assert (
            side["data"][names[1]]["output"][0]["data_name"]
            == "NPU.npu_swiglu.0.forward.output.0.pt"
        )
    # What we write, we read: the dumps agree, and computing them again gives the same.
    assert golden.diff(tmp_path / "out" / "recorded", tmp_path / "out" / "softnpu").alike
    assert "3 same" in replay(tmp_path / "out" / "softnpu")
    stack = json.loads((tmp_path / "out" / "softnpu" / "stack.json").read_text())
    assert names[0] in stack["0"][0] and __file__ in stack["0"][1][0]


def test_a_dump_is_written_under_its_own_names(tmp_path):
    source = api_dump(tmp_path / "d")
    replay(source, "--msprobe", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "softnpu" / "dump.json").read_text())["data"]
    given = json.loads((source / "dump.json").read_text())["data"]
    assert list(written) == [name for name in given if not name.startswith("Distributed")]
    backward = written["Functional.linear.0.backward"]
    assert set(backward) == {"input", "output"} and len(backward["output"]) == 2
