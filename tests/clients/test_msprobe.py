"""msprobe: a dump of a run on the device, compared with one of the CPU, and its check of every API by itself."""

from __future__ import annotations

import csv
import json

import pytest

from tests.clients.launch import PROGRAMS, tool

pytest.importorskip("msprobe", reason="msprobe (mindstudio-probe) is not installed")


def dump(folder, device, task="tensor"):
    config = folder / f"{device}_{task}.json"
    options = {
        "task": task, "dump_path": str(folder / device), "rank": [], "step": [], "level": "L1",
        task: {"scope": [], "list": [], "data_mode": ["all"]},
    }  # fmt: skip
    config.write_text(json.dumps(options), "utf-8")
    tool("python", PROGRAMS / "msprobe_dump.py", device, config)
    (made,) = (folder / device).glob("step0/*/dump.json")
    return made


def table(path):
    with path.open(encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_dump_and_compare(tmp_path):
    on_npu, on_cpu = dump(tmp_path, "npu"), dump(tmp_path, "cpu")
    names = json.loads(on_npu.read_text("utf-8"))["data"]
    assert names.keys() == json.loads(on_cpu.read_text("utf-8"))["data"].keys()
    assert "Functional.linear.0.forward" in names and "Functional.gelu.0.backward" in names
    tool("msprobe", "compare", "-tp", on_npu, "-gp", on_cpu, "-o", tmp_path / "out")
    (result,) = (tmp_path / "out").glob("compare_result*.csv")
    values = [row["Cosine"] for row in table(result)]
    numbers = [float(value) for value in values if value.replace(".", "", 1).isdigit()]
    assert len(numbers) > 10 and min(numbers) > 0.9999


def test_acc_check(tmp_path):
    """Each dumped API is run again on the device and on the CPU, with random data of the dump's kind."""
    made = dump(tmp_path, "npu", "statistics")
    out = tmp_path / "out"
    tool("msprobe", "acc_check", "-api_info", made, "-o", out)
    (result,) = out.glob("accuracy_checking_result*.csv")
    found = {
        row["API name"]: (row["Forward Test Success"], row["Backward Test Success"])
        for row in table(result)
    }
    names = ("linear.0", "layer_norm.0", "gelu.0", "linear.1", "cross_entropy.0")
    assert found == {f"Functional.{name}": ("pass", "pass") for name in names}
