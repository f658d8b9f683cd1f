"""The comparison of two files: what counts as a regression, and the exit status."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import compare, record
from benchmarks.harness import Against, Goal, Row

ABOUT = {"cpu": "some", "cores": 2, "threads": 2, "capability": "AVX2"}


def row(name: str = "a", error: str = "", goal: Goal | None = None, **ratios: float) -> Row:
    versus = {n: Against(1.0, r, goal) for n, r in ratios.items()}
    return Row("group", name, 1.0, versus, rounds=5, error=error)


@pytest.mark.parametrize(
    "old,new,factor",
    [
        ({"cpu": 1.0}, {"cpu": 1.5}, 1.5),
        ({"cpu": 1.0}, {"cpu": 0.5}, 0.5),
        ({"cpu": 1.0, "inductor": 1.0}, {"cpu": 1.5, "inductor": 1.2}, 1.2),
        ({"cpu": 1.0, "inductor": 1.0}, {"cpu": 0.5, "inductor": 0.8}, 0.8),
        ({"cpu": 1.0, "inductor": 1.0}, {"cpu": 1.5, "inductor": 0.9}, 1.0),  # the baseline changed
        ({"cpu": 1.0}, {"limit": 2.0}, 1.0),  # nothing in common
    ],
)
def test_factor(old, new, factor):
    assert compare.factor(row(**old), row(**new)) == pytest.approx(factor)


def test_a_lost_goal_is_a_regression_however_small():
    goal = Goal(1.0)
    found = compare.changes([row(goal=goal, cpu=0.99)], [row(goal=goal, cpu=1.01)])
    assert [c.lost for c in compare.regressions(found, 0.1)] == [True]
    assert "goal lost" in str(found[0])


def test_a_wrong_result_is_a_regression():
    found = compare.changes([row(cpu=1.0)], [row(error="wrong by 3")])
    assert str(compare.regressions(found, 0.1)[0]) == "group, a: wrong by 3"


def test_what_stays_is_no_regression():
    goal = Goal(1.0)
    found = compare.changes([row(goal=goal, cpu=1.2)], [row(goal=goal, cpu=1.25)])
    assert compare.regressions(found, 0.1) == []


def run(tmp_path, old, new, *options, about=ABOUT):
    record.write(tmp_path / "old.json", ABOUT, old)
    record.write(tmp_path / "new.json", about, new)
    names = [str(tmp_path / f"{n}.json") for n in ("old", "new")]
    return CliRunner().invoke(compare.main, [*names, *options])


def test_command_prints_all_changes(tmp_path):
    old = [row("slower", cpu=1.0), row("faster", cpu=1.0), row("gone", cpu=1.0)]
    new = [row("slower", cpu=2.0), row("faster", cpu=0.5), row("new", cpu=1.0)]
    done = run(tmp_path, old, new)
    assert done.exit_code == 0
    assert "regression: group, slower: 2.00 times the time" in done.output
    assert "faster: group, faster: 0.50 times the time" in done.output
    assert "gone: group, gone" in done.output
    assert "2 cases in both, 1 regressed, 1 new" in done.output


def test_strict_fails_on_a_regression_only(tmp_path):
    assert run(tmp_path, [row(cpu=1.0)], [row(cpu=2.0)], "--strict").exit_code == 1
    assert run(tmp_path, [row(cpu=1.0)], [row(cpu=1.05)], "--strict").exit_code == 0
    assert (
        run(tmp_path, [row(cpu=1.0)], [row(cpu=2.0)], "--strict", "--threshold", "2").exit_code == 0
    )


def test_another_machine_is_named(tmp_path):
    done = run(tmp_path, [row(cpu=1.0)], [row(cpu=1.0)], about={**ABOUT, "cores": 64})
    assert "not the same machine: cores was 2, is 64" in done.output
