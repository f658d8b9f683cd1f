"""The `softnpu` command, in this process and as a program."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import get_completion_class
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

    monkeypatch.setattr(importlib.metadata, "distributions", lambda **given: [Real()])
    text = run("doctor", code=1)
    assert "torch-npu 2.13.0 is installed beside softnpu" in text


def test_doctor_finds_another_torch(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.6.0")
    assert "2.6.0 (supported: 2.7.1 to 2.14)" in run("doctor", code=1)


def test_doctor_misses_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = {entry["check"]: entry for entry in json.loads(run("doctor", "--json", code=1))}
    assert not found["compiler"]["good"] and found["computation"]["good"]
    assert "torch.compile" in found["compiler"]["found"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell):
    script = run("completion", shell)
    assert "_SOFTNPU_COMPLETE" in script and "softnpu" in script


@pytest.mark.parametrize(
    "typed,offered",
    [
        (["softnpu", "cov"], {"coverage"}),
        (["softnpu", "run", "--soc", "910B4"], {"Ascend910B4"}),
        (["softnpu", "completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_completion_offers(typed, offered):
    engine = get_completion_class("bash")(cli.main, {}, "softnpu", "_SOFTNPU_COMPLETE")
    found = {item.value for item in engine.get_completions(typed[1:-1], typed[-1])}
    assert found == offered


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
        [sys.executable, "-m", "softnpu", "chips"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr


# --- --json and run -------------------------------------------------------------------------------------


def test_json_of_info_chips_and_coverage():
    found = json.loads(run("info", "--json"))
    assert found["emulated"] is True and len(found["devices"]) == 8
    assert [c["name"] for c in json.loads(run("chips", "--json"))] == chips.names()
    entries = json.loads(run("coverage", "--absent", "--json"))
    assert all(e["status"] != "works" and e["note"] for e in entries)


PROGRAM = """
import sys, torch, torch_npu
x = torch.ones(256, 1024, device="npu")
for _ in range(3):
    torch_npu.npu_rms_norm(x, x[0])
try:
    torch_npu.npu_rms_norm(x, x[0, 1:])
except RuntimeError:
    sys.exit(int(sys.argv[2]))
"""

WORKER = """
import torch, torch.distributed as dist, torch_npu
dist.init_process_group("hccl")
torch.npu.set_device(dist.get_rank())
x = torch.ones(4, device="npu")
dist.all_reduce(x)
assert x.sum().item() == 8
dist.destroy_process_group()
"""


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "softnpu", "run", *map(str, arguments)]
    environment = {k: v for k, v in os.environ.items() if k != "SOFTNPU_QUIET"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_run_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    done = program("--json", "--devices", 2, "--memory", "1GiB", script, "--soc", 3)
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == found["exit_code"] == 3
    assert "emulating 2 x Ascend910B3 (1 GiB each)" in done.stderr
    counts = {entry["name"]: entry["count"] for entry in found["operators"]}
    assert counts["npu_rms_norm"] == 3
    assert found["peak_memory"]["0"] >= 2 * 2**20
    (message,) = found["constraint_errors"]
    assert message.startswith("npu_rms_norm: argument 'gamma'")


def test_run_torchrun_counts_all_ranks_and_prints_one_banner(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = program("--json", "-m", "torch.distributed.run", "--nproc-per-node", 2, script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["processes"] == 2 and set(found["peak_memory"]) == {"0", "1"}
    assert done.stderr.count("softnpu: emulating") == 1


def test_run_injects_faults(tmp_path):
    script, faults = tmp_path / "script.py", tmp_path / "faults.toml"
    script.write_text(PROGRAM)
    faults.write_text('[[fault]]\ncall = "out_of_memory"\nnth = 1\n')
    done = program("--faults", faults, script, "x", 0)
    assert done.returncode == 1 and "out of memory" in done.stderr
    assert "exit code 1" in done.stderr


@pytest.mark.parametrize(
    "text,message",
    [
        ('[[fault]]\ncall = "clear"', "call must be one of memory_error"),
        ('[[fault]]\ncall = "fail"', "fail: missing a required argument: 'kind'"),
        ('[[fault]]\ncall = "link_error"\ndevice = 8', "device must be from 0 to 7"),
        ("other = 1", "must hold [[fault]] tables"),
        ("[[", "is not TOML"),
    ],
)
def test_run_refuses_wrong_faults(tmp_path, text, message):
    faults = tmp_path / "f.toml"
    faults.write_text(text)
    said = " ".join(run("run", "--faults", str(faults), __file__, code=1).split())
    assert message in said


def test_run_refuses_faults_of_others(tmp_path):
    faults = tmp_path / "f.toml"
    faults.write_text('[[fault]]\ncall = "link_error"\n')
    faults.chmod(0o666)
    said = "".join(run("run", "--faults", str(faults), __file__, code=1).split())
    assert "f.tomlmaybewrittenbyeverybody" in said


def test_run_refuses_what_is_no_program():
    assert "neither a file nor a command" in run("run", "no_such_program", code=2)


def test_the_summary_of_a_run_shows_messages_as_they_are(capsys, monkeypatch):
    """Square brackets are no markup: some would be left out, others would end the command with an error."""
    from softnpu import run as runs

    monkeypatch.setenv("COLUMNS", "200")
    note = {
        "operators": {"mine::[bold]": 1}, "busy_ns": {}, "peak_memory": {}, "dropped": 0, "rank": 0,
        "constraint_errors": {"x must be [batch, words], but is [/red]": 1}, "warnings": {"[/nothing]": 2},
    }  # fmt: skip
    runs._print(runs.summary([note], 0), "Ascend910B3", 20)
    shown = capsys.readouterr().err
    for text in ("mine::[bold]", "x must be [batch, words], but is [/red]", "[/nothing]"):
        assert text in shown
