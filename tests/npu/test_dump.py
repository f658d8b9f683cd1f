"""init_dump, set_dump, finalize_dump."""

import csv
import json

import numpy as np
import pytest
import torch

import torch_npu
from torch_npu.npu import _dump


@pytest.fixture(autouse=True)
def not_left_on():
    yield
    if _dump._initialized:
        torch.npu.finalize_dump()


def run(config, work):
    torch.npu.init_dump()
    torch.npu.set_dump(config)
    work()
    torch.npu.finalize_dump()


def entries(folder):
    (root,) = folder.iterdir()
    return root, json.loads((root / "index.json").read_text())


def section(folder, **fields):
    return {"dump": {"dump_path": str(folder), "dump_op_switch": "on", **fields}}


def test_inputs_and_outputs_become_files(tmp_path):
    a = torch.arange(4.0, device="npu").reshape(2, 2)
    b = torch.full((2, 2), 2.0, device="npu")
    run(section(tmp_path, dump_mode="all"), lambda: torch.mm(a, b))
    root, index = entries(tmp_path)
    assert root.name.isdecimal() and len(root.name) == 14
    found = {(e["stage"], e["index"]): np.load(root / e["file"]) for e in index}
    assert set(found) == {("input", 0), ("input", 1), ("output", 0)}
    assert np.array_equal(found["input", 0], [[0, 1], [2, 3]])
    assert np.array_equal(found["output", 0], [[2, 2], [10, 10]])
    names = [e["file"] for e in index]
    assert all(n.startswith("0/mm.mm_0.") and n.endswith(".npy") for n in names)
    assert all(len(n.split("/")[1].split(".")) == 8 for n in names)


def test_in_place_inputs_are_kept_as_they_were(tmp_path):
    x = torch.ones(3, device="npu")
    run(section(tmp_path, dump_mode="all"), lambda: x.add_(5))
    root, index = entries(tmp_path)
    values = {e["stage"]: np.load(root / e["file"]) for e in index if e["index"] == 0}
    assert values["input"].tolist() == [1, 1, 1] and values["output"].tolist() == [6, 6, 6]


def test_selection_by_operator_step_and_mode(tmp_path):
    x = torch.ones(2, device="npu")

    def work():
        for _ in range(4):
            torch.relu(x)
            torch.exp(x)

    config = section(
        tmp_path, dump_mode="output", dump_list=[{"layer": ["relu"]}], dump_step="0|2-3"
    )
    run(config, work)
    _, index = entries(tmp_path)
    assert [(e["operator"], e["stage"], e["run"]) for e in index] == [
        ("aten::relu", "output", 0),
        ("aten::relu", "output", 2),
        ("aten::relu", "output", 3),
    ]


def test_statistics_instead_of_tensors(tmp_path):
    x = torch.tensor([3.0, -4.0]).npu()
    run(section(tmp_path, dump_data="stats", dump_list=[{"layer": ["abs"]}]), lambda: x.abs())
    root, _ = entries(tmp_path)
    (row,) = csv.DictReader((root / "0" / "statistics.csv").open())
    assert float(row["max"]) == 4 and float(row["min"]) == 3 and float(row["l2norm"]) == 5
    assert not list(root.rglob("*.npy"))


def test_backward_and_own_operators_are_dumped_from_a_file(tmp_path):
    config = tmp_path / "dump.json"
    folder = tmp_path / "out"
    folder.mkdir()
    config.write_text(json.dumps(section(folder)))
    x = torch.randn(2, 8, device="npu", dtype=torch.bfloat16, requires_grad=True)
    gamma = torch.ones(8, device="npu", dtype=torch.bfloat16)
    run(str(config), lambda: torch_npu.npu_rms_norm(x, gamma)[0].sum().backward())
    root, index = entries(folder)
    names = {e["operator"] for e in index}
    assert "npu::npu_rms_norm" in names and any("backward" in n for n in names)
    bf16 = next(e for e in index if e["operator"] == "npu::npu_rms_norm")
    assert bf16["dtype"] == "bfloat16" and np.load(root / bf16["file"]).dtype == np.float32


def test_nothing_is_written_after_the_end(tmp_path):
    run(section(tmp_path), lambda: None)
    torch.ones(2, device="npu").add_(1)
    assert list(tmp_path.iterdir()) == []


def test_order_of_calls(tmp_path):
    with pytest.raises(RuntimeError, match="set_dump needs init_dump first"):
        torch.npu.set_dump(section(tmp_path))
    with pytest.raises(RuntimeError, match="finalize_dump needs init_dump first"):
        torch.npu.finalize_dump()
    torch.npu.init_dump()
    with pytest.raises(RuntimeError, match="called already"):
        torch.npu.init_dump()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dump_mode": "both"}, "field 'dump_mode' must be one of input, output, all"),
        ({"dump_path": "/not/there"}, "field 'dump_path' must be an existing directory"),
        ({"dump_op_switch": "yes"}, "field 'dump_op_switch' must be one of on, off"),
        ({"dump_data": "bytes"}, "field 'dump_data'"),
        ({"dump_list": "all"}, "field 'dump_list' must be a list"),
        ({"dump_list": [3]}, "field 'dump_list' must be a list of objects"),
        ({"dump_list": [{"layer": "mm"}]}, "field 'layer' must be a list of operator names"),
        ({"dump_list": [{"layers": ["mm"]}]}, "field 'dump_list' must be objects"),
        ({"dump_step": "a-b"}, "field 'dump_step' must be numbers and ranges"),
        ({"dump_op_switch": "off"}, "field 'dump_list' must be given"),
        ({"dump_depth": 3}, "unknown field 'dump_depth'"),
    ],
)
def test_a_bad_configuration_names_the_field(tmp_path, change, message):
    torch.npu.init_dump()
    config = section(tmp_path)
    config["dump"].update(change)
    with pytest.raises(ValueError, match=message):
        torch.npu.set_dump(config)


def test_fields_of_cann_that_are_not_supported(tmp_path):
    torch.npu.init_dump()
    for field, value in (("dump_debug", "on"), ("dump_scene", "watcher"), ("dump_stats", ["Max"])):
        with pytest.raises(NotImplementedError, match=f"field '{field}' is not supported"):
            torch.npu.set_dump(section(tmp_path, **{field: value}))
    torch.npu.set_dump(section(tmp_path, dump_debug="off", dump_level="op"))


def test_bad_files(tmp_path):
    torch.npu.init_dump()
    with pytest.raises(AssertionError, match="path does not exists"):
        torch.npu.set_dump(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        torch.npu.set_dump(str(tmp_path / "bad.json"))
    (tmp_path / "bad.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not JSON"):
        torch.npu.set_dump(str(tmp_path / "bad.json"))
    (tmp_path / "bad.json").chmod(0o666)
    with pytest.raises(PermissionError, match="bad.json may be written by everybody"):
        torch.npu.set_dump(str(tmp_path / "bad.json"))
    with pytest.raises(ValueError, match="field 'dump' must be an object"):
        torch.npu.set_dump({"dmp": {}})
    with pytest.raises(ValueError, match="field '<root>'"):
        (tmp_path / "list.json").write_text("[]")
        torch.npu.set_dump(str(tmp_path / "list.json"))
