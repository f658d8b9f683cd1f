"""What the command asks of the clock."""

import json

import pytest

from softnpu.plan import timing
from softnpu.plan.clock import Calibration, ClockError
from softnpu.plan.tasks import Task, TensorSpec

X = TensorSpec((1024, 1024), "bfloat16")
TASKS = [
    Task("aten::mm", "kernel", 0, 0, (X, X), (X,), phase="forward"),
    Task("hccl::all_reduce", "collective", 0, 1, (X,), (X,), waits=(0,), ranks=8),
]


def test_data_of_the_report():
    found = timing.time(TASKS, "Ascend910B1", 8)
    data = json.loads(json.dumps(timing.as_data(TASKS, found)))
    assert data["predicted"] is True
    assert data["step_seconds"] == found.seconds
    first, second = data["kernels"]
    assert first["inputs"] == [{"shape": [1024, 1024], "dtype": "bfloat16"}] * 2
    assert (first["name"], first["phase"], second["stream"]) == ("aten::mm", "forward", 1)
    assert second["start"] >= first["start"] + first["seconds"]
    assert first["bound"] in ("cube", "memory", "launch")
    assert "exposed communication" in timing.lines(found)[0]


def test_calibration_of_another_chip(tmp_path):
    file = tmp_path / "c.json"
    Calibration("Ascend910B3").write(file)
    assert timing.read_calibration(file, "Ascend910B3") == Calibration("Ascend910B3")
    assert timing.read_calibration(None, "Ascend910B3") is None
    with pytest.raises(ClockError, match="of Ascend910B3, but the plan is for Ascend910B1"):
        timing.read_calibration(file, "Ascend910B1")
    with pytest.raises(ClockError, match="no calibration"):
        timing.read_calibration(tmp_path / "d.json", "Ascend910B1")


def test_calibrate_writes_a_file(tmp_path):
    header = "Type,Duration(us),Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
    row = 'Add,100,"1024,1024;1024,1024",FLOAT;FLOAT,ND;ND,"1024,1024",FLOAT,ND'
    (tmp_path / "kernel_details.csv").write_text(f"{header}\n{row}\n")
    file = tmp_path / "c.json"
    said = timing.calibrate(tmp_path, "Ascend910B1", file)
    assert "1 kernels and collectives of 1 types" in said[0]
    assert "elementwise:add" in Calibration.read(file).names
    with pytest.raises(ClockError, match="'Ascend9' is not in chips.toml"):
        timing.calibrate(tmp_path, "Ascend9", file)


def test_points_of_a_sweep():
    base = {"mfu": 0.5, "capacity_bytes": 64 << 30}
    reports = [
        {**base, "ranks": 8, "step_seconds": 2.0, "peak_reserved_bytes": 60 << 30},
        {**base, "ranks": 8, "step_seconds": 3.0, "peak_reserved_bytes": 70 << 30},
        {**base, "ranks": 64, "step_seconds": 0.5, "peak_reserved_bytes": 9 << 30},
        {**base, "ranks": 512, "step_seconds": None, "peak_reserved_bytes": 0},
    ]
    first, second = timing.sweep_points(reports)
    assert (first.ranks, first.step_seconds, first.peak_bytes) == (8, 3.0, 70 << 30)
    assert not first.fits and second.fits
    with pytest.raises(ClockError, match="no program reached one"):
        timing.sweep_points(reports[3:])
