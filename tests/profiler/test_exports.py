"""export_stacks and export_memory_timeline."""

from __future__ import annotations

import gzip
import json

import pytest
import torch

import torch_npu.profiler as prof
from tests.profiler.support import make_profile, op
from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import stacks
from torch_npu.profiler.writers.memory_timeline import CATEGORIES


@pytest.mark.parametrize(
    ("metric", "lines"),
    [
        ("self_cpu_time_total", ["train.py(3): <module>;model.py(7): forward 165"] * 2),
        ("self_npu_time_total", ["train.py(3): <module>;model.py(7): forward 140"] * 2),
    ],
)
def test_stacks(tmp_path, metric, lines):
    stacks.export(Model(make_profile(tmp_path)), tmp_path / "stacks.log", metric)
    assert (tmp_path / "stacks.log").read_text("utf-8").splitlines() == lines


def test_stacks_below_a_microsecond_are_left_out(tmp_path):
    data = {"op": [op("short", 0, 0.9, stack=["a"]), op("long", 5, 6, stack=["b"])]}
    stacks.export(Model(make_profile(tmp_path, data)), tmp_path / "s.log", "self_cpu_time_total")
    assert (tmp_path / "s.log").read_text("utf-8") == "b 1\n"


def test_stacks_are_a_log_file(tmp_path, capsys):
    stacks.export(Model(make_profile(tmp_path)), tmp_path / "stacks.txt", "self_cpu_time_total")
    assert (tmp_path / "stacks.log").exists() and "ends in .log" in capsys.readouterr().out


def test_export_stacks_of_a_profiler(tmp_path, capsys):
    with prof.profile(with_stack=True) as profiler:
        torch.ones(3, device="npu").exp()
    profiler.export_stacks(str(tmp_path / "s.log"), metric="wrong")
    assert "Invalid parameter metric" in capsys.readouterr().out
    assert "test_export_stacks_of_a_profiler" in (tmp_path / "s.log").read_text("utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A profiler that saw two steps of training; sizes of its tensors are known."""
    model = torch.nn.Linear(128, 128, device="npu")
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.ones(64, 128, device="npu")

    def step() -> None:
        loss = model(data).relu().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    profiler = prof.profile(
        record_shapes=True, profile_memory=True, with_stack=True, with_modules=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        with profiler:
            step()
            step()
    return profiler


def test_memory_by_category(tmp_path, trained):
    trained.export_memory_timeline(str(tmp_path / "m.raw.json.gz"), device="npu:0")
    with gzip.open(tmp_path / "m.raw.json.gz", "rt") as file:
        events = json.load(file)
    before = {name: 0 for name in CATEGORIES}
    for _, action, size, category in events:
        if action == 0:
            before[CATEGORIES[category]] += size
    parameters = 128 * 128 * 4 + 512
    assert before["PARAMETER"] == parameters
    assert before["OPTIMIZER_STATE"] >= 2 * parameters
    assert before["GRADIENT"] == parameters
    made = {CATEGORIES[category] for _, action, size, category in events if action == 1}
    assert {"ACTIVATION", "GRADIENT"} <= made
    assert (
        sum(size for _, action, size, c in events if CATEGORIES[c] == "ACTIVATION") == 0
    )  # all went


def test_memory_timeline_formats(tmp_path, trained):
    for name in ("m.json", "m.json.gz", "m.html"):
        trained.export_memory_timeline(str(tmp_path / name), device="npu:0")
    times, sizes = json.loads((tmp_path / "m.json").read_text("utf-8"))
    with gzip.open(tmp_path / "m.json.gz", "rt") as file:
        assert json.load(file) == [times, sizes]
    assert times == sorted(times) and len(times) == len(sizes)
    assert {len(row) for row in sizes} == {len(CATEGORIES) + 1} and min(map(min, sizes)) >= 0
    page = (tmp_path / "m.html").read_text("utf-8")
    assert page.count("<polygon") == len(CATEGORIES) and "Max memory allocated" in page


@pytest.mark.parametrize("device", ["cpu", "npu", "npu:7"])
def test_a_device_without_memory_is_told(tmp_path, trained, capsys, device):
    trained.export_memory_timeline(str(tmp_path / "m.json"), device=device)
    assert "[ERROR]" in capsys.readouterr().out and not (tmp_path / "m.json").exists()
