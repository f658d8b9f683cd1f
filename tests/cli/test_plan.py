"""`softnpu plan`: named models on many ranks, and calibration."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import run

ROW = 'mm,MatMulV2,AI_CORE,{},"4096,4096;4096,4096",DT_BF16;DT_BF16,ND;ND,"4096,4096",DT_BF16,ND'
HEADER = (
    "Name,Type,Accelerator Core,Duration(us),Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats"
)


def test_a_sweep_of_models(tmp_path):
    page, data = tmp_path / "sweep.html", tmp_path / "sweep.json"
    options = ("--ranks", "256,512", "--soc", "Ascend910B1", "--page", page, "--json", data)
    text = run(
        "plan", "--model", "llama3-70b", "--model", "deepseek-v3", *(str(o) for o in options)
    )
    assert "llama3-70b, 256 ranks (tp " in text and "deepseek-v3, 512 ranks (tp " in text
    assert "deepseek-v3" in page.read_text("utf-8") and "<svg" in page.read_text("utf-8")
    points = json.loads(data.read_text("utf-8"))["models"]["llama3-70b"]
    assert [point["ranks"] for point in points] == [256, 512]
    # twice the ranks, the same batch: less time a step, but not less than half
    assert 0.5 < points[1]["step_seconds"] / points[0]["step_seconds"] < 1


def test_a_calibration(tmp_path):
    profiles, file = tmp_path / "profiles", tmp_path / "card.json"
    profiles.mkdir()
    (profiles / "kernel_details.csv").write_text(f"{HEADER}\n{ROW.format(900.0)}\n")
    text = run("plan", "--calibrate", str(profiles), "--calibration", str(file))
    assert "matmulv2" in text.lower() and str(file) in text
    assert json.loads(file.read_text("utf-8"))["chip"] == "Ascend910B3"


@pytest.mark.parametrize(
    "arguments,message,code",
    [
        ([], "say what to plan", 2),
        (["--model", "gpt9"], "gpt9", 1),
        (["--model", "llama3-70b", "--ranks", "8,x"], "must be numbers such as 8 or 8,64", 2),
        (["--model", "llama3-70b", "--ranks", "0"], "must be numbers such as 8 or 8,64", 2),
        (["--model", "llama3-70b", "--soc", "Ascend1"], "'Ascend1' is not in chips.toml", 1),
        (["--model", "llama3-70b", "--soc", "Ascend310P3"], "Ascend310P3", 1),
    ],
)
def test_refused(arguments, message, code):
    assert message in run("plan", *arguments, code=code)
