"""`softnpu diff`: bugs planted in one layer of twelve, found by their operator, module and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from softnpu import cli, faults, golden
from tests.golden import model


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "run"
    with golden.record(path, ops="*"):
        model.run()
    return path


def diff(*arguments: object, code: int) -> str:
    done = CliRunner().invoke(cli.main, ["diff", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def line_of(text: str) -> int:
    lines = Path(model.__file__).read_text("utf-8").splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if text in line]
    return number


def test_two_runs_of_the_same_program(good, tmp_path):
    with golden.record(tmp_path / "b", ops="*"):
        model.run()
    said = diff(good, tmp_path / "b", code=0)
    assert "outputs of 0 differ" in said and "only in" not in said


def test_one_wrong_product_in_layer_7(good, tmp_path):
    """A fault of the device: one bit of each product from there on, of which the first is the cause."""
    forward_products = 2  # of a layer
    with golden.record(tmp_path / "b", ops="*"):
        faults.corrupt_products(after=7 * forward_products + 1)
        try:
            model.run()
        finally:
            faults.clear()
    found = json.loads(
        diff(good, tmp_path / "b", "--json", "--rtol", "0", "--atol", "0", "--share", "0", code=1)
    )
    first = found["first"]
    assert (first["op"], first["module"], first["phase"]) == (
        "aten::addmm",
        "Model.layers.7.down",
        "forward",
    )
    assert all(d["bitwise"] for d in first["inputs"]) and not first["outputs"][0]["bitwise"]


def test_a_wrong_operator_in_layer_7(good, tmp_path, monkeypatch):
    import torch_npu

    calls = []
    real = torch_npu.npu_swiglu

    class Wrong(torch.utils._python_dispatch.TorchDispatchMode):
        """Under the recorder: the operator itself computes something else, once."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.npu.npu_swiglu.default:
                calls.append(func)
                if len(calls) == 8:
                    result.view(-1)[5] += 1.0
            return result

    with Wrong(), golden.record(tmp_path / "b", ops="*"):
        model.run()
    assert real is torch_npu.npu_swiglu and len(calls) == model.LAYERS
    said = diff(good, tmp_path / "b", code=1)
    assert "first operator whose output differs though its inputs agree" in said
    assert "npu::npu_swiglu" in said and "module    Model.layers.7\n" in said
    assert f"{model.__file__}:{line_of('npu_swiglu(self.up(y))')} in forward" in said
    assert "y = torch_npu.npu_swiglu(self.up(y))" in said
    found = json.loads(diff(good, tmp_path / "b", "--json", code=1))
    assert found["first"]["outputs"][0]["worst"][0]["index"] == [0, 5]
    assert found["differing"] > 1, "what comes after differs too, but is not the first"


def test_another_attribute_is_told(good, tmp_path, monkeypatch):
    import torch_npu

    real = torch_npu.npu_rms_norm
    seen = []

    def with_other_epsilon(x, gamma):
        seen.append(x)
        return real(x, gamma, 1e-3 if len(seen) == 5 else 1e-6)

    monkeypatch.setattr(torch_npu, "npu_rms_norm", with_other_epsilon)
    with golden.record(tmp_path / "b", ops="*"):
        model.run()
    found = json.loads(diff(good, tmp_path / "b", "--json", code=1))
    assert found["attributes"]["module"] == "Model.layers.4"
    assert any("0.001 in b" in text for text in found["attributes"]["attributes"])


def test_fp32_and_bf16(good, tmp_path):
    """The precision alone is no bug: every output agrees as far as bf16 can tell, with a tolerance of its own."""
    with golden.record(tmp_path / "b", ops="*"):
        model.run(torch.bfloat16)
    found = golden.diff(good, tmp_path / "b", tolerance=golden.Tolerance(0.1, 0.1, 0.05))
    forward = found.compared
    assert forward > 5 * model.LAYERS and found.attributes is None
    assert found.first is None or found.first.a["phase"] == "backward"


def test_eager_and_compiled(tmp_path):
    """Inside a compiled graph no operator can be heard: modules are what both runs have."""
    torch.manual_seed(0)
    network = model.Model().npu()
    x = torch.randn(4, model.WIDTH).npu()
    with torch.no_grad(), golden.record(tmp_path / "a", ops="", modules=True):
        network(x)
    for number, layer in enumerate(network.layers):
        if number in (3, 7):
            network.layers[number] = torch.compile(layer, backend="aot_eager")
    with torch.no_grad(), golden.record(tmp_path / "b", ops="", modules=True):
        network(x)
    found = golden.diff(tmp_path / "a", tmp_path / "b")
    assert found.alike and found.compared >= model.LAYERS + 1
    with torch.no_grad(), golden.record(tmp_path / "c", ops="", modules=True):
        network.layers[7]._orig_mod.down.bias[3] += 1
        torch._dynamo.reset()
        network(x)
    found = golden.diff(tmp_path / "a", tmp_path / "c")
    assert found.first is not None and found.first.b["module"] == "Model.layers.7"


def test_npu_and_cpu(tmp_path):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
    x = torch.randn(4, 8)
    for device in ("cpu", "npu"):
        with golden.record(tmp_path / device, ops="*"):
            network.to(device)(x.to(device))
    found = golden.diff(tmp_path / "cpu", tmp_path / "npu")
    assert found.differing == 0 and found.compared >= 3


def test_other_jobs_are_refused(good, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with golden.record(tmp_path / "b"):
        pass
    assert "not the same job" in diff(good, tmp_path / "b", code=1)
