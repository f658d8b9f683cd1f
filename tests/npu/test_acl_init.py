"""What the environment says about ACL is checked when the device starts, each time in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = (
    "import torch, torch_npu; torch.npu.set_device(0); print(torch.ones(2).npu().sum().item())"
)


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "SOFTNPU_QUIET": "1", **variables},
        capture_output=True,
        text=True,
    )


def test_a_valid_configuration(tmp_path):
    path = tmp_path / "acl.json"
    path.write_text(
        '{"dump": {"dump_scene": "lite_exception"}, "defaultDevice": {"default_device": "0"}}'
    )
    ended = run(TORCH_ACL_INIT_CONFIG_PATH=str(path), ACL_OP_INIT_MODE="1")
    assert (ended.returncode, ended.stdout.strip()) == (0, "2.0"), ended.stderr
    assert "ACL_OP_INIT_MODE" not in ended.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is invalid"),
        ("", "Failed to parse user acl json"),
        ("{'dump'", "Failed to parse user acl json"),
        ('{"dump": {}}', "lacks 'defaultDevice'"),
        ('{"defaultDevice": "0"}', "lacks 'defaultDevice'"),
        ('{"defaultDevice": {"default_device": "1"}}', "to be \"0\", but it is '1'"),
    ],
)
def test_a_wrong_configuration(tmp_path, text, said):
    path = tmp_path / "acl.json"
    if text is not None:
        path.write_text(text)
    ended = run(TORCH_ACL_INIT_CONFIG_PATH=str(path))
    assert ended.returncode != 0
    assert "RuntimeError" in ended.stderr and said in ended.stderr
    assert str(path) in ended.stderr


def test_an_older_cann_has_no_default_device(tmp_path):
    path = tmp_path / "acl.json"
    path.write_text('{"defaultDevice": {"default_device": "0"}}')
    ended = run(TORCH_ACL_INIT_CONFIG_PATH=str(path), SOFTNPU_CANN_VERSION="8.2.RC1")
    assert ended.returncode != 0
    assert "contains 'defaultDevice'" in ended.stderr


@pytest.mark.parametrize(
    ("chip", "mode", "said"),
    [
        ("Ascend910B3", "999", "not in [0, 1, 2]"),
        ("Ascend950", "0", "only supports ACL_OP_INIT_MODE=2"),
    ],
)
def test_a_mode_that_the_chip_has_not(chip, mode, said):
    ended = run(SOFTNPU_SOC=chip, ACL_OP_INIT_MODE=mode)
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stderr


@pytest.mark.parametrize("mode", ["+-1", "9" * 5000, "\u0661", "1x"])
def test_a_mode_that_is_no_number(mode):
    """strtol, with which upstream reads it, takes what it can and never fails."""
    ended = run(ACL_OP_INIT_MODE=mode)
    assert (ended.returncode, ended.stdout.strip()) == (0, "2.0"), ended.stderr


@pytest.mark.parametrize("path", ["a" * 5000, "\udcff", "a pipe"])
def test_a_path_that_names_no_file(tmp_path, path):
    if path == "a pipe":
        path = str(tmp_path / "pipe")
        os.mkfifo(path)
    ended = run(TORCH_ACL_INIT_CONFIG_PATH=path)
    assert ended.returncode == 1 and "is invalid: no such file" in ended.stderr
    assert "fault_raise" not in ended.stderr
