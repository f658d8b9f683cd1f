"""The published measurements: split by rule, errors within limits, the page fresh."""

import csv
from collections import Counter

import pytest

from softnpu import chips
from softnpu.plan.clock import ClockError, architectures, evidence, models
from softnpu.plan.tasks import Task
from tests import ROOT
from tools import plan_table

JUDGED = evidence.judged()


def test_all_rows_are_there():
    assert Counter(row.kind for row in evidence.rows()) == {"operator": 99, "model": 79, "comm": 36}
    assert len({row.id for row in evidence.rows()}) == 214


def test_a_row_is_predicted_or_says_what_is_missing():
    for row in evidence.rows():
        assert bool(row.missing) != bool(row.family), row.id
        assert row.missing or row.chip in chips.names(), row.id


def test_every_other_row_of_a_family_is_held_out():
    for family in {row.family for row in evidence.rows() if row.family}:
        found = [row for row in evidence.rows() if row.family == family]
        assert [row.id for row in found] == sorted(row.id for row in found)
        assert [row.held_out for row in found] == [i % 2 == 1 for i in range(len(found))]


@pytest.mark.parametrize("kind", evidence.KINDS)
def test_median_error_of_held_out_rows(kind):
    held = [one for one in JUDGED if one.row.kind == kind and one.row.held_out]
    assert len(held) > 10
    assert evidence.median(held) <= evidence.LIMITS[kind]


def test_page_is_fresh():
    text = plan_table.PAGE.read_text("utf-8")
    assert text == plan_table.page(), "run: python -m tools.plan_table"


def test_page_has_every_row():
    text = (ROOT / "docs" / "plan-clock.md").read_text("utf-8")
    for row in evidence.rows():
        line = next(line for line in text.splitlines() if line.startswith(f"| {row.id} "))
        assert row.source in line
        assert ("not predictable" in line) == bool(row.missing)


def test_data_file_is_sorted_csv():
    file = ROOT / "src" / "softnpu" / "plan" / "clock" / "measurements.csv"
    with open(file, newline="", encoding="utf-8") as lines:
        ids = [row["id"] for row in csv.DictReader(lines)]
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama2-7b", 6.74),
        ("llama3-70b", 70.6),
        ("mixtral-8x7b", 46.7),
        ("qwen3-235b", 235.1),
        ("gpt3-175b", 174.6),
        ("deepseek-v3", 671.0),
        ("gemma-7b", 8.54),
    ],
)
def test_parameters_of_models(name, billions):
    """As their publishers count them."""
    assert architectures.get(name).parameters() / 1e9 == pytest.approx(billions, rel=0.01)


def test_unknown_model_is_named():
    with pytest.raises(ClockError, match="'gpt9' is not in architectures.toml"):
        architectures.get("gpt9")


def test_fused_communication_runs_beside_its_product():
    """What follows waits for both; what is not fused stands between the products."""
    one = architectures.get("llama2-7b")
    fused = models.Layers(one, 64, tp=8, fused=True)
    fused.product(64, 8, 8)
    fused.beside("hccl::reduce_scatter", 64, 8, 8, start=0)
    fused.row("aten::add", 8, 8)
    assert [task.stream for task in fused.tasks] == [0, 1, 0]
    assert fused.tasks[2].waits == (1,)
    apart = models.Layers(one, 64, tp=8)
    apart.product(64, 8, 8)
    apart.beside("hccl::reduce_scatter", 64, 8, 8, start=0)
    assert [task.stream for task in apart.tasks] == [0, 0]
    assert all(isinstance(task, Task) for task in apart.tasks)
