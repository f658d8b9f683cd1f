"""torch_npu.profiler.schedule and ProfilerAction."""

from __future__ import annotations

import pytest

from torch_npu.profiler import ProfilerAction, schedule

N, W, R, S = (
    ProfilerAction.NONE, ProfilerAction.WARMUP, ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE,
)  # fmt: skip


def actions(plan, steps: int) -> list[ProfilerAction]:
    return [plan(step) for step in range(steps)]


def test_values_of_the_actions():
    assert [action.value for action in (N, W, R, S)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"wait": 1, "active": 2}, [N, R, S, N, R, S]),
        ({"wait": 0, "active": 1}, [S, S, S]),
        ({"wait": 1, "warmup": 1, "active": 2, "repeat": 1}, [N, W, R, S, N, N, N, N]),
        ({"wait": 0, "warmup": 1, "active": 1, "skip_first": 2, "repeat": 2}, [N, N, W, S, W, S, N]),
        ({"wait": 2, "active": 1, "repeat": 2, "skip_first_wait": 1}, [S, N, N, S, N, N]),
    ],
)  # fmt: skip
def test_cycles(arguments, expected):
    assert actions(schedule(**arguments), len(expected)) == expected


def test_the_guides_example():
    plan = schedule(wait=2, warmup=1, active=2, repeat=2, skip_first=1, skip_first_wait=1)
    assert actions(plan, 10) == [N, W, R, S, N, N, W, R, S, N]


@pytest.mark.parametrize(
    ("name", "wrong", "default"),
    [
        ("wait", -1, 0), ("wait", "1", 0), ("active", 0, 1), ("active", None, 1), ("warmup", -2, 0), ("repeat", -1, 0),
        ("skip_first", 1.5, 0), ("skip_first_wait", "x", 0),
    ],
)  # fmt: skip
def test_a_wrong_value_is_the_default_with_a_warning(capsys, name, wrong, default):
    plan = schedule(**{"wait": 1, "active": 1, "warmup": 1, name: wrong})
    assert getattr(plan, name) == default
    said = capsys.readouterr().out
    assert "[WARNING]" in said and f"Invalid parameter {name}" in said and repr(wrong) in said


def test_a_missing_warmup_is_told(capsys):
    schedule(wait=0, active=1)
    assert "no warmup" in capsys.readouterr().out


def test_a_negative_step_is_an_error():
    with pytest.raises(ValueError, match="step must not be negative, but received -1"):
        schedule(wait=0, active=1)(-1)
