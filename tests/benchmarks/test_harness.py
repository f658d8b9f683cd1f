"""The harness: rounds by turns, ratios, goals, errors, files and tables. Nothing here depends on how long things take."""

from __future__ import annotations

import math

import pytest
from rich.console import Console

from benchmarks import harness, record, table
from benchmarks.harness import Against, Case, Goal, Row, Versus


def number(*values):
    """A function that returns one value after the other, the last for ever."""
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def measured(**options) -> Row:
    return harness.measure(Case("group", "name", **options), budget=0)


def test_a_case_of_one_baseline_is_one_comparison():
    row = measured(subject=number(2.0), baseline=number(4.0), goal=Goal(0.6), reads=True)
    assert row.value == 2.0 and list(row.versus) == ["cpu"]
    assert row.versus["cpu"] == Against(4.0, 0.5, Goal(0.6))
    assert row.met is True and row.rounds == harness.MIN_ROUNDS


def test_several_baselines_are_one_row():
    others = {
        "inductor": Versus(number(1.0), Goal(1.0), reads=True),
        "limit": Versus(0.5, Goal(4.0)),
    }
    row = measured(subject=number(2.0), baseline=number(8.0), others=others, reads=True)
    assert {n: a.ratio for n, a in row.versus.items()} == {"cpu": 0.25, "inductor": 2, "limit": 4}
    assert [a.met for a in row.versus.values()] == [None, False, True]
    assert row.met is False


def test_sides_take_turns_and_each_begins_a_round():
    seen = []
    others = {"b": Versus(lambda: seen.append("b") or 1.0, reads=True)}
    first = lambda: seen.append("a") or 1.0  # noqa: E731
    row = measured(subject=first, others=others, reads=True)
    rounds = seen[-2 * row.rounds :]
    pairs = ["".join(rounds[i : i + 2]) for i in range(0, len(rounds), 2)]
    assert pairs == ["ab", "ba", "ab", "ba", "ab"]


def test_the_ratio_is_the_median_of_rounds_not_of_medians():
    """A machine that becomes slower for all of them changes no ratio."""
    mine, theirs = number(9.0, 1, 10, 100, 1000, 10000), number(9.0, 2, 20, 200, 2000, 20000)
    row = measured(subject=mine, baseline=theirs, reads=True)
    assert row.versus["cpu"].ratio == 0.5 and row.value == 100


def test_a_timed_function_is_warm_before_it_counts():
    calls = []
    row = measured(subject=lambda: calls.append(1))
    assert row.value > 0 and len(calls) > row.rounds


def test_what_is_slow_is_called_once_and_says_so():
    calls = []
    slow = Versus(lambda: calls.append(1) or 3.0, once=True, reads=True, times=4, label="bf16")
    row = measured(subject=number(1.0), baseline=slow, reads=True)
    assert calls == [1] and row.versus["cpu"].value == 12.0
    assert row.versus["cpu"].note == "bf16, measured once, 1/4 of the work, times 4"


def test_a_case_that_is_measured_once_calls_each_side_once():
    calls = []

    def read(name, value):
        return lambda: calls.append(name) or value

    row = measured(subject=read("a", 6.0), baseline=read("b", 3.0), reads=True, once=True, unit="B")
    assert calls == ["a", "b"] and row.rounds == 1 and row.versus["cpu"].ratio == 2


@pytest.mark.parametrize("failure", [AssertionError("wrong by 3"), RuntimeError("no such thing")])
def test_a_wrong_subject_is_an_error_and_not_a_time(failure):
    def check():
        raise failure

    row = measured(subject=number(1.0), baseline=number(1.0), check=check)
    assert row.error == str(failure) and math.isnan(row.value) and row.met is False
    assert harness.unmet([row]) == [f"group, name: {failure}"]


def test_other_failures_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        measured(subject=lambda: 1 / 0)


def test_a_goal_on_the_mean_asks_nothing_of_a_case():
    goal = Goal(1.2, mean=True)
    rows = [Row("g", str(r), r, {"cpu": Against(1.0, r, goal)}, rounds=5) for r in (1.0, 4.0)]
    assert [r.met for r in rows] == [None, None]
    (mean,) = harness.means(rows)
    assert mean.versus["cpu"].ratio == pytest.approx(2.0) and mean.met is False
    assert harness.unmet(rows) == ["g, geometric mean: 2, the goal is <= 1.2 by cpu"]


@pytest.mark.parametrize(
    "goal,text",
    [(Goal(1.05), "<= 1.05"), (Goal(1 / 20), "20x faster"), (Goal(1.2, True), "<= 1.2 (mean)")],
)
def test_goals_in_words(goal, text):
    assert str(goal) == text


@pytest.mark.parametrize(
    "value,unit,text",
    [(2.5, "s", "2.5 s"), (3e-3, "s", "3 ms"), (4.2e-5, "s", "42 us"), (1e-8, "s", "10 ns"),
     (0.0, "s", "0 ns"), (16 * 2**20, "B", "16 MiB"), (12, "B", "12 B"), (math.nan, "s", "")],
)  # fmt: skip
def test_quantities_in_words(value, unit, text):
    assert table.quantity(value, unit) == text


ROW = Row(
    "norms", "npu_x", 2e-3,
    {"cpu": Against(4e-3, 0.5), "inductor": Against(1e-3, 2.0, Goal(1.0)),
     "limit": Against(1e-3, 2.0, Goal(2.0)), "npu fp32": Against(2e-3, 1.0)},
    rounds=7,
)  # fmt: skip


def test_a_row_of_the_table():
    assert dict(zip(table.COLUMNS, table.cells(ROW), strict=True)) == {
        "case": "npu_x", "npu": "2 ms", "cpu": "4 ms (0.5)", "inductor": "1 ms (2)", "limit": "1 ms (2)",
        "other": "npu fp32 2 ms (1)", "goal": "inductor <= 1; limit <= 2", "met": "not met: inductor",
    }  # fmt: skip


def test_the_terminal_shows_one_table_with_every_group():
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table.terminal([ROW, Row("rope", "npu_y", error="wrong result")]))
    text = capture.get()
    assert text.count("inductor <= 1") == 1 and "rope" in text and "wrong result" in text


def test_the_file_gives_back_the_rows(tmp_path):
    mean = Row("small", "add", 1e-6, {"cpu": Against(1e-6, 1.0, Goal(1.2, mean=True), "a note")})
    rows = [ROW, mean, Row("rope", "npu_y", error="wrong result")]
    record.write(tmp_path / "run.json", {"cpu": "some"}, rows)
    about, back = record.read(tmp_path / "run.json")
    assert about == {"cpu": "some"} and back[:2] == rows[:2]
    assert back[2].error == "wrong result" and math.isnan(back[2].value)


def test_the_machine_names_what_numbers_depend_on(monkeypatch):
    monkeypatch.setattr(record.limits, "copy_rate", lambda: 2e10)
    monkeypatch.setattr(record.limits, "blas_rate", lambda: 1e11)
    about = record.machine()
    assert about["copy_gb_per_s"] == 20 and about["fp32_gflop_per_s"] == 100
    assert {"softnpu", "torch", "python"} <= set(about["versions"])
    assert about["cores"] >= 1 and isinstance(about["features"], list)
