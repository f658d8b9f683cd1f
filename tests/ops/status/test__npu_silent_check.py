"""_npu_silent_check, _npu_silent_check_v2: by loops over numbers, from CANN's page of aclnnSilentCheck and the page of
NPU_ASD_SIGMA_THRESH, which gives the measure of a jump."""

import logging
import math

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import make

LIMITS = (1000.0, 50.0, 100.0, 5.0)  # of values and jumps: faults, then warnings
MIN_STEPS = 3


class Numbers:
    """The check on plain numbers."""

    def __init__(self):
        self.seen = []
        self.before = self.least = self.most = 0.0

    def __call__(self, value):
        steps = len(self.seen)
        self.seen.append(value)
        levels = []
        for top, jump in (LIMITS[:2], LIMITS[2:]):
            far = abs(value - self.before) > jump * (self.most - self.least)
            levels.append(abs(value) > top or (steps >= MIN_STEPS and far))
        if not math.isfinite(value):
            return 1
        self.before = value
        self.least = value if steps == 0 else min(self.least, value)
        self.most = value if steps == 0 else max(self.most, value)
        return 1 if levels[0] else 2 if levels[1] else 0


def v2(value, sfda, step, detect=1, grad=None):
    grad = make(2, 3) if grad is None else grad
    value = torch.tensor(value).npu()
    return torch_npu._npu_silent_check_v2(value, grad, sfda, step, MIN_STEPS, *LIMITS, detect)


VALUES = (1.0, 2.0, 1.5, 3.0, 9.0, 9.5, 200.0, 60.0, 5000.0, math.inf, 7.0, math.nan, 8.0, 4.0)


def test_v2_as_numbers(caplog):
    sfda, step, numbers = make(3, low=3, high=9), torch.zeros(1, dtype=torch.int64).npu(), Numbers()
    for i, value in enumerate(VALUES):
        with caplog.at_level(logging.WARNING, "torch_npu.silent_check"):
            caplog.clear()
            result = v2(value, sfda, step)
        want = numbers(value)
        assert result.tolist() == [want] and result.dtype == torch.int32
        levels = {0: [], 1: [logging.ERROR], 2: [logging.WARNING]}[want]
        assert [record.levelno for record in caplog.records] == levels
        assert sfda.tolist() == [numbers.before, numbers.least, numbers.most]
        assert step.tolist() == [i + 1]


def test_every_kind_of_result_occurs():
    numbers = Numbers()
    assert {numbers(value) for value in VALUES} == {0, 1, 2}


@pytest.mark.parametrize("detect", [2, 3])
def test_v2_raises(detect):
    sfda, step = torch.tensor([1.0, 1.0, 2.0]).npu(), torch.tensor([9]).npu()
    grad = make(2, 3)
    with pytest.raises(RuntimeError, match=r"fault: val 5000\.0, before 1\.0, min 1\.0, max 2\.0"):
        v2(5000.0, sfda, step, detect, grad)
    assert not grad.any() and step.tolist() == [9] and sfda.tolist() == [1.0, 1.0, 2.0]


def test_v2_of_nothing():
    sfda, step = make(3), torch.tensor([4]).npu()
    assert v2(1.0, sfda, step, grad=make(0)).tolist() == [0] and step.tolist() == [4]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_first_version(dtype):
    history = [torch.tensor(part).npu() for part in (0.0, 1e10, -1e10)]
    numbers = Numbers()
    for value in (1.0, 2.0, 1.5, 3.0, 9.0, 9.5, 60.0):
        steps = torch.tensor(len(numbers.seen), dtype=dtype).npu()
        arguments = (make(2), torch.tensor(value).npu(), *history, steps, MIN_STEPS, *LIMITS)
        result = torch_npu._npu_silent_check(*arguments)
        assert result.item() == numbers(value) and result.dtype == dtype
        found = [part.item() for part in history]
        assert found == [numbers.before, numbers.least, numbers.most]


def test_first_version_raises():
    grad, one = make(2, 3), torch.tensor(1.0).npu()
    steps, bad = torch.tensor(0).npu(), torch.tensor(math.nan).npu()
    with pytest.raises(RuntimeError, match="_npu_silent_check: fault: val nan"):
        torch_npu._npu_silent_check(
            grad, bad, one.clone(), one.clone(), one.clone(), steps, MIN_STEPS, *LIMITS
        )
    assert not grad.any()


def test_bad_arguments():
    good = dict(val=make(1)[0], input_grad=make(2), sfda=make(3), step=torch.zeros(1).long().npu())
    rest = (MIN_STEPS, *LIMITS, 1)
    for name, bad, expected in (
        ("val", make(1), "'val' must be of 0 dimensions|'val' must be"),
        ("sfda", make(4), r"'sfda' must be of shape \(3\)"),
        ("sfda", make(3, dtype=torch.float16), "'sfda' must be of dtype torch.float32"),
        ("step", torch.zeros(1).int().npu(), "'step' must be of dtype torch.int64"),
        ("step", torch.zeros(2).long().npu(), r"'step' must be of shape \(1\)"),
    ):
        with pytest.raises(RuntimeError, match=expected):
            torch_npu._npu_silent_check_v2(*(good | {name: bad}).values(), *rest)
    one, steps = make(1), torch.zeros(1).int().npu()
    for name, arguments in {
        "val": (make(2), make(2), one, one, one, steps),
        "min_val": (make(2), one, one, make(3), one, steps),
        "val_counter": (make(2), one, one, one, one, one),
    }.items():
        with pytest.raises(RuntimeError, match=f"'{name}' must be of"):
            torch_npu._npu_silent_check(*arguments, MIN_STEPS, *LIMITS)


@pytest.mark.parametrize("chip", ["Ascend310P3", "Ascend950"])
def test_v2_is_of_a2_and_a3(chip):
    with as_chip(chip), pytest.raises(RuntimeError, match="_npu_silent_check_v2"):
        v2(1.0, make(3), torch.zeros(1, dtype=torch.int64).npu())
