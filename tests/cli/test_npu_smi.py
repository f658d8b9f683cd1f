"""`npu-smi`, and the processes that it and `softnpu info` show. The patterns are those that programs use on the card's tool."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from softnpu import host, settings
from softnpu.cli import main, npu_smi

HOLDER = """
import sys, torch, torch_npu
there = torch.empty(64 * 2**20, dtype=torch.int8, device="npu:3")
print("ready", flush=True)
sys.stdin.read()
"""


def ask(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(npu_smi.main, ["info", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def somebody(monkeypatch):
    """A process that holds memory of device 3, and no other one."""
    found = [host.Process(4321, "python3", {3: 300 * 2**20})]
    monkeypatch.setattr(host, "processes", lambda: found)


def test_every_line_of_the_table_is_as_wide_as_the_tool_s(somebody):
    assert {len(line) for line in ask().splitlines()} == {98}


def test_the_table_is_read_by_patterns_of_programs(somebody):
    text = ask()
    chips = re.findall(r"\|\s*(\d+)\s+910(\w+)\s+\|\s*(\w+)\s*\|\s*([\d.]+)\s+(\d+)", text)
    assert [int(chip[0]) for chip in chips] == list(range(8))
    assert {chip[1:3] for chip in chips} == {("B3", "OK")}
    memory = re.findall(
        r"\|\s*\d+\s+\|\s+[\w:.]+\s+\|\s+\d+\s+\d+\s*/\s*\d+\s+(\d+)\s*/\s*(\d+)", text
    )
    assert memory == [("300" if n == 3 else "0", "65536") for n in range(8)]
    running = re.findall(r"\|\s*(\d+)\s+(\d+)\s+\|\s*(\d+)\s*\|\s*(\S+)\s*\|\s*(\d+)\s*\|", text)
    assert running == [("3", "0", "4321", "python3", "300")]
    assert text.count("No running processes found in NPU") == 7
    assert "emulated" in text


def test_chips_of_a_pair(somebody):
    with settings.override(soc="Ascend910_9391", devices=4):
        text = ask()
        assert "Chip  Phy-ID" in text
        assert re.findall(r"\|\s*(\d+)\s+Ascend910\s", text) == ["0", "0", "1", "1"]
        assert re.findall(r"\|\s*([01])\s+(\d)\s+\|\s*NA", text) == [
            ("0", "0"), ("1", "1"), ("0", "2"), ("1", "3"),
        ]  # fmt: skip
        assert "HBM Usage Rate(%)              : 0" in ask("-t", "usages", "-i", "1", "-c", "1")


def test_topics(somebody):
    usages = ask("-t", "usages", "-i", "3")
    assert re.search(r"HBM Capacity\(MB\)\s*: 65536", usages)
    assert "Chip Name                      : 910B3" in ask("-t", "board", "-i", "0", "-c", "0")
    assert re.search(r"Health\s+: OK", ask("-t", "health", "-i", "0"))
    assert "Process id:4321" in ask("-t", "proc-mem", "-i", "3")
    assert "4321" not in ask("-t", "proc-mem", "-i", "2")
    topology = ask("-t", "topo")
    assert topology.index("HCCS") < topology.index("Legend")
    assert re.search(r"Total Count\s+: 8", ask("-l"))
    rows = [line.split() for line in ask("-m").splitlines()[1:]]
    assert [row[:3] for row in rows] == [[str(n), "0", str(n)] for n in range(8)]


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        (("-t", "ecc", "-i", "0"), 1, "-t ecc is not emulated"),
        (("-t", "usages"), 2, "needs the NPU"),
        (("-t", "usages", "-i", "8"), 1, "there is no chip 0 on an NPU 8"),
    ],
)
def test_refusals(somebody, arguments, code, message):
    assert message in ask(*arguments, code=code)


def test_no_device(somebody):
    with settings.override(enabled=False):
        assert "no NPU" in ask(code=1)


def test_a_process_is_seen_while_it_lives():
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "ready\n"
        (seen,) = [p for p in host.processes() if p.pid == holder.pid]
        assert seen.memory == {3: 64 * 2**20}
        found = json.loads(CliRunner().invoke(main, ["info", "--json"]).stdout)
        assert found["devices"][3]["used"] >= 64 * 2**20
        assert str(holder.pid) in ask("-t", "proc-mem", "-i", "3")
    finally:
        holder.communicate("")
    assert holder.pid not in [p.pid for p in host.processes()]


def _value(text: str, key: str) -> str:
    """As vllm-ascend's setup reads a field: the first line that has the key, what stands after the last colon."""
    for line in text.splitlines():
        if key in " ".join(line.split()):
            return line.split(":")[-1].strip()
    return ""


@pytest.mark.parametrize(
    ("soc", "expected"),
    [
        ("Ascend910B1", "ascend910b1"), ("Ascend910B3", "ascend910b3"), ("Ascend310P3", "ascend310p3"),
        ("Ascend910_9391", "ascend910_9391"), ("Ascend950", "ascend950_950"),
    ],
)  # fmt: skip
def test_the_chip_s_name_as_installers_put_it_together(somebody, soc, expected):
    with settings.override(soc=soc):
        number = _value(ask("-l"), "NPU ID")
        board = ask("-t", "board", "-i", number)
        one = board if _value(board, "Chip Name") else ask("-t", "board", "-i", number, "-c", "0")
        name, kind, npu = (_value(one, key) for key in ("Chip Name", "Chip Type", "NPU Name"))
        assert (kind == "") != (npu == "")
        assert (kind + name if kind else f"{name}_{npu}").lower() == expected


def test_the_topology_names_the_processors_of_each_device(somebody):
    rows = [line for line in ask("-t", "topo").splitlines() if re.match(r"NPU\d", line)]
    assert len(rows) == 8
    for number, row in enumerate(rows):
        first, *_, processors = row.split()
        assert first == f"NPU{number}"
        assert re.fullmatch(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*", processors)
        numbers = [part.split("-") for part in processors.split(",")]
        covered = [n for part in numbers for n in range(int(part[0]), int(part[-1]) + 1)]
        assert covered == sorted(os.sched_getaffinity(0))


def test_the_map_of_chips_is_a_table_with_two_spaces_between_columns(somebody):
    head, *rows = [line.strip() for line in ask("-m").splitlines()]
    columns = re.split(r"\s{2,}", head)
    assert columns[:3] == ["NPU ID", "Chip ID", "Chip Logic ID"]
    assert [row.split()[:3] for row in rows] == [[str(n), "0", str(n)] for n in range(8)]


def test_health_is_read_from_its_line(somebody):
    assert _value(ask("-i", "0", "-t", "health"), "Health") == "OK"
