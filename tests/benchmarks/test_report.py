"""The page: what its fields become, its plots, its list of missed goals, and that nothing of a run is left out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks import plot, record, report
from benchmarks.harness import Against, Goal, Row

ABOUT = {
    "cpu": "Some CPU", "cores": 2, "threads": 2, "capability": "AVX2", "memory_gib": 8, "load": 0.1,
    "features": ["avx2"], "copy_gb_per_s": 10, "fp32_gflop_per_s": 100, "date": "2026-01-01",
    "versions": {"torch": "2.13.0"},
}  # fmt: skip
ROWS = [
    Row("norms", "npu_a", 2e-3, {"inductor": Against(1e-3, 2.0, Goal(1.0))}, rounds=5),
    Row("norms", "npu_b", 1e-3, {"limit": Against(1e-3, 1.0, Goal(2.0), "copy")}, rounds=5),
    Row("odd", "c", 1e-3, {"cpu": Against(2e-3, 0.5)}, rounds=5),
    Row("odd", "d", error="wrong result"),
]
REASONS = [{"case": "norms, npu_a", "versus": "inductor", "text": "It takes {{ ours npu_a }}."}]


def page(reasons=REASONS) -> report.Page:
    return report.Page(ABOUT, ROWS, reasons)


def test_sentences():
    text = page().fill("{{ summary }} {{ machine }}")
    assert text.startswith("4 cases; 1 of 2 goals met. 1 cases failed. Some CPU with 2 cores")
    assert "avx2" in text and "10 GB/s" in text and "torch 2.13.0" in text


def test_numbers_in_a_sentence():
    text = page().fill(
        "{{ ours npu_a }}, {{ theirs npu_a | inductor }}, {{ ratio npu_a | inductor }}, "
        "{{ ours absent }}, {{ ratio npu_a | cpu }}"
    )
    assert text == "2 ms, 1 ms, 2, n/a, n/a"


def test_a_table_has_its_rows_and_remarks():
    text = page().fill("{{ table norms }}")
    assert "| npu_a | 2 ms |  | 1 ms (2) |" in text and "not met: inductor" in text
    assert text.endswith("limit: copy (npu_b).") and "| c |" not in text


def test_the_rest_is_every_group_without_a_place():
    text = page().fill("{{ table norms }}\n{{ rest }}")
    assert text.count("npu_a") == 1 and "### odd" in text


def test_missed_goals_have_their_reasons():
    made = page()
    text = made.fill("{{ missed }}")
    assert "It takes 2 ms.\n\n- norms, npu_a: 2 by inductor, the goal is <= 1" in text
    assert "- odd, d: wrong result" in text and made.unexplained == []


def test_a_missed_goal_without_a_reason_is_told():
    made = page([])
    assert "Not explained." in made.fill("{{ missed }}")
    assert made.unexplained == ["norms, npu_a, by inductor"]


def test_a_plot_has_a_dot_for_each_ratio_and_a_stroke_for_each_goal():
    root = ElementTree.fromstring(plot.svg("norms", ROWS[:2]))
    marks = {n.get("id"): n for n in root.iter() if re.match("(ratio|goal) ", n.get("id") or "")}
    assert sorted(marks) == ["goal 0 inductor", "goal 1 limit", "ratio 0 inductor", "ratio 1 limit"]
    # two is right of its goal of one, one left of its goal of two
    x = {name: next(float(u.get("x")) for u in n.iter() if u.get("x")) for name, n in marks.items()}
    assert x["ratio 0 inductor"] > x["goal 0 inductor"] and x["ratio 1 limit"] < x["goal 1 limit"]
    text = "".join(root.itertext())
    assert all(word in text for word in ("norms: our time by theirs", ROWS[0].name, "inductor"))


def test_command_writes_page_and_plots(tmp_path, monkeypatch):
    record.write(tmp_path / "run.json", ABOUT, ROWS)
    (tmp_path / "performance").mkdir()
    (tmp_path / "performance" / "stale.svg").write_text("")
    monkeypatch.setattr(report, "reasons", lambda: REASONS)
    command = [str(tmp_path / "run.json"), "--docs", str(tmp_path), "--strict"]
    done = CliRunner().invoke(report.main, command)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "performance.md").read_text()
    assert "{{" not in text and "It takes 2 ms." in text
    pictures = re.findall(r"\]\((performance/[^)]*)\)", text)
    assert pictures == ["performance/norms.svg"]
    assert [p.name for p in (tmp_path / "performance").iterdir()] == ["norms.svg"]


def test_strict_wants_a_reason(tmp_path, monkeypatch):
    record.write(tmp_path / "run.json", ABOUT, ROWS)
    monkeypatch.setattr(report, "reasons", list)
    command = [str(tmp_path / "run.json"), "--docs", str(tmp_path), "--strict"]
    done = CliRunner().invoke(report.main, command)
    assert done.exit_code == 1 and "norms, npu_a, by inductor" in done.output


@pytest.mark.parametrize("reason", report.reasons(), ids=lambda r: r["case"])
def test_reasons_are_complete(reason):
    assert set(reason) <= {"case", "versus", "text"} and reason["text"].strip()
