"""The `softnpu` command, in this process and as a program."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from softnpu import chips, cli, settings


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(cli.main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_info():
    text = run("info")
    assert "8 x Ascend910B3" in text and "64 GiB" in text and "emulated" in text
    for variable in settings._READERS:
        assert variable in text


def test_chips_lists_them_all():
    text = run("chips")
    for name in chips.names():
        assert name in text
    assert "Ascend910B3 *" in text


def test_coverage():
    text = run("coverage")
    assert "torch_npu API" in text and "all" in text


def test_coverage_lists_the_absent_with_reasons():
    from tools.coverage import seeds

    text = run("coverage", "--absent")
    for entry in seeds():
        if entry.status != "works":
            assert entry.name in text


def test_doctor_is_content():
    text = run("doctor")
    assert "bad" not in text and "agree with the CPU" in text


def test_doctor_finds_the_real_package(monkeypatch):
    class Real:
        metadata = {"Name": "torch_npu"}
        version = "2.13.0"

    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Real()])
    text = run("doctor", code=1)
    assert "torch-npu 2.13.0 is installed beside softnpu" in text


def test_doctor_finds_another_torch(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.6.0")
    assert "2.6.0 (2.13.0 is needed)" in run("doctor", code=1)


def test_unknown_command():
    assert "No such command 'frobnicate'" in run("frobnicate", code=2)


@pytest.mark.parametrize(
    "variable,value,message",
    [
        ("SOFTNPU_SOC", "Ascend1", "is not a known chip"),
        ("SOFTNPU_DEVICES", "none", "must be a number from 1 to 64"),
        ("SOFTNPU_SPEED", "9", "SOFTNPU_SPEED is not a setting of softnpu"),
    ],
)
def test_wrong_settings_are_one_line(variable, value, message):
    environment = {**os.environ, variable: value}
    done = subprocess.run(
        [sys.executable, "-m", "softnpu.cli", "chips"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr
