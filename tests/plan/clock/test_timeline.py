"""Schedules that can be computed by hand."""

import pytest

from softnpu.plan.clock import ClockError
from softnpu.plan.clock.timeline import merge, schedule, uncovered
from softnpu.plan.tasks import Task


def task(stream=0, waits=(), host_waits=False):
    return Task("aten::add", "kernel", 0, stream, (), (), waits=waits, host_waits=host_waits)


def test_one_stream_runs_in_order():
    plan = schedule([task(), task(), task()], [5, 7, 1], launch=1, sync=0)
    assert plan.starts == [1, 6, 13]
    assert plan.end == 14


def test_device_waits_for_a_slow_host():
    plan = schedule([task(), task()], [1, 1], launch=10, sync=0)
    assert plan.starts == [10, 20]
    assert plan.end == 21


def test_streams_overlap():
    plan = schedule([task(0), task(1)], [10, 10], launch=1, sync=0)
    assert plan.starts == [1, 2]
    assert plan.end == 12


def test_a_wait_orders_streams():
    plan = schedule([task(0), task(1, waits=(0,)), task(0)], [10, 4, 3], launch=1, sync=0)
    assert plan.starts == [1, 11, 11]
    assert plan.end == 15


def test_host_that_waits_launches_later():
    tasks = [task(host_waits=True), task()]
    plan = schedule(tasks, [10, 1], launch=2, sync=5)
    assert plan.starts == [2, 12 + 5 + 2]
    assert plan.end == 20


def test_devices_have_their_own_streams():
    tasks = [task(), Task("aten::add", "kernel", 1, 0, (), ())]
    assert schedule(tasks, [10, 10], launch=1, sync=0).starts == [1, 2]


def test_a_wait_for_a_later_task_is_an_error():
    with pytest.raises(ClockError, match=r"task 0 \(aten::add\) waits for task 1"):
        schedule([task(waits=(1,)), task()], [1, 1], launch=1, sync=0)


def test_time_that_nothing_covers():
    assert merge([(3, 5), (0, 1), (4, 8)]) == [(0, 1), (3, 8)]
    assert uncovered([(0, 10)], []) == 10
    assert uncovered([(0, 10), (5, 12)], [(2, 4), (11, 20)]) == 9
    assert uncovered([(0, 4), (6, 8)], [(3, 7)]) == 4
