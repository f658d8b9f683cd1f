"""torch_npu.utils.set_thread_affinity and reset_thread_affinity, as the operating system sees them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from torch_npu.utils import reset_thread_affinity, set_thread_affinity


@pytest.fixture
def cores() -> Iterator[list[int]]:
    before = os.sched_getaffinity(0)
    yield sorted(before)
    reset_thread_affinity()
    assert os.sched_getaffinity(0) == before


def test_a_range_has_both_ends(cores):
    set_thread_affinity([cores[0], cores[-1]])
    assert os.sched_getaffinity(0) == set(cores)
    set_thread_affinity([cores[-1], cores[-1]])
    assert os.sched_getaffinity(0) == {cores[-1]}


def test_ranges_may_be_several_and_overlap(cores):
    first, last = cores[0], cores[-1]
    set_thread_affinity([[first, first], [last, last], [first, first]])
    assert os.sched_getaffinity(0) == {first, last}


def test_none_and_reset_give_all_back(cores):
    for undo in (set_thread_affinity, reset_thread_affinity):
        set_thread_affinity([cores[0], cores[0]])
        undo()
        assert os.sched_getaffinity(0) == set(cores)


def test_other_threads_are_not_bound(cores):
    seen: list[set[int]] = []
    go = threading.Event()

    def look() -> None:
        go.wait(10)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=look)
    thread.start()
    set_thread_affinity([cores[0], cores[0]])
    go.set()
    thread.join()
    assert seen == [set(cores)]


@pytest.mark.parametrize(
    "wrong", [[], [1], [1, 2, 3], [[0, 1], [2]], [-1, 2], [3, 1], ["0", "1"], [[0, 1], 2]]
)
def test_what_is_no_range_is_refused(cores, wrong):
    with pytest.raises(ValueError, match="Invalid core range"):
        set_thread_affinity(wrong)
    assert os.sched_getaffinity(0) == set(cores)


def test_processors_that_do_not_exist_are_refused(cores):
    with pytest.raises(ValueError, match="no processor of"):
        set_thread_affinity([5000, 5001])
    assert os.sched_getaffinity(0) == set(cores)
