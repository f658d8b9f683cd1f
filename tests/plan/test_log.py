"""The order of tasks: waits between streams, where steps end, what is forgotten."""

from softnpu.plan.record.log import Log
from softnpu.plan.tasks import Task

MAIN, SIDE = (0, 0), (0, 1)


def task(name="k", place=MAIN, **more):
    return Task(name, "kernel", *place, (), (), **more)


def names(log):
    return [one.name for one in log.step_tasks()]


def test_an_event_joins_streams():
    log = Log()
    log.add(task("a"))
    log.wait(SIDE, log.last_of(MAIN))
    log.add(task("b", SIDE))
    log.add(task("c", SIDE))
    assert [one.waits for one in log.step_tasks()] == [(), (0,), ()]


def test_a_stream_needs_no_wait_for_itself():
    log = Log()
    log.add(task("a"))
    log.wait(MAIN, log.last_of(MAIN))
    log.wait(SIDE, None)  # an event that nobody recorded
    log.add(task("b"))
    log.add(task("c", SIDE))
    assert [one.waits for one in log.step_tasks()] == [(), (), ()]


def test_a_reader_waits_for_the_writer_on_another_stream():
    log = Log()
    log.add(task("write", SIDE), writes=[64])
    log.add(task("other"), reads=[128])
    log.add(task("read"), reads=[64])
    log.add(task("again", SIDE), reads=[64])
    assert [one.waits for one in log.step_tasks()] == [(), (), (0,), ()]


def test_the_host_waits():
    log = Log()
    log.add(task("a"))
    log.add(task("b", SIDE))
    log.add(task("c", (1, 0)))
    log.host_waits_for_device(0)
    assert [one.host_waits for one in log.step_tasks()] == [True, True, False]


def test_a_step_ends_with_the_optimizer():
    log = Log()
    log.add(task("init"))
    log.begin()
    for number in range(3):
        log.add(task(f"forward{number}"))
        log.backward_begins()
        log.add(task(f"backward{number}"))
        log.optimizer_ends()
    log.add(task("rest"))
    log.finish()
    assert names(log) == ["forward2", "backward2"]
    assert (log.steps().kind, log.steps().count, len(log.steps().ends)) == ("optimizer", 3, 3)
    assert log.launches == 8


def test_the_first_step_begins_with_a_module():
    log = Log()
    log.add(task("init"))
    log.begin()
    log.add(task("forward"))
    log.backward_begins()
    log.optimizer_ends()
    log.finish()
    assert names(log) == ["forward"]


def test_two_optimizers_are_one_step():
    log = Log()
    for number in range(2):
        log.backward_begins()
        log.add(task(f"a{number}"))
        log.optimizer_ends()
        log.add(task(f"b{number}"))
        log.optimizer_ends()
    log.finish()
    assert names(log) == ["a1", "b1"] and log.steps().count == 2


def test_a_profilers_step_counts_instead():
    log = Log()
    for number in range(3):
        log.add(task(f"a{number}"))
        log.backward_begins()
        log.optimizer_ends()
        log.add(task(f"b{number}"))
        log.profiler_steps()
    log.finish()
    assert names(log) == ["a2", "b2"] and log.steps().kind == "profiler"


def test_a_program_without_steps_is_one():
    log = Log()
    log.add(task("init"))
    log.begin()
    log.add(task("a"))
    log.finish()
    assert names(log) == ["a"] and log.steps().kind == "program"


def test_waits_survive_what_is_forgotten():
    log = Log()
    for _ in range(4):
        log.backward_begins()
        log.add(task("a"))
        log.wait(SIDE, log.last_of(MAIN))
        log.add(task("b", SIDE))
        log.wait(MAIN, log.last_of(SIDE))  # the next step's first task waits for this one's last
        log.optimizer_ends()
    log.finish()
    assert [one.waits for one in log.step_tasks()] == [(), (0,)]
    assert len(log._tasks) < 8
