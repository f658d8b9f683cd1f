"""The log of tasks has one reader; the profiler reads beside it what ran between its own start and stop."""

from softnpu._observe import SharedTrace


class Device:
    """The native log, as far as it matters here."""

    def __init__(self):
        self.tasks, self.on, self.shapes, self.lost = [], False, False, 0

    def trace_start(self, shapes, most):
        self.tasks, self.on, self.shapes, self.lost = [], True, shapes, 0

    def trace_stop(self):
        self.on = False

    def trace_take(self):
        taken, self.tasks = self.tasks, []
        return taken

    def trace_dropped(self):
        return self.lost

    def run(self, name, *more):
        if self.on:
            self.tasks.append((name, 0, 0, 0, 0, 0, 0, [], [], *more))


def names(tasks):
    return [task[0] for task in tasks]


def test_both_readers_see_what_concerns_them():
    device = Device()
    trace = SharedTrace(device)
    device.run("before")
    device.trace_start(True, 100)  # the profiler's
    device.run("during")
    assert names(trace.take()) == ["before", "during"]
    device.run("later")
    device.trace_stop()
    device.run("after")
    assert names(device.trace_take()) == ["during", "later"]
    assert names(trace.take()) == ["later", "after"]
    assert device.on and not device.shapes


def test_shapes_stay_on_for_the_reader_that_wants_them():
    device = Device()
    SharedTrace(device, shapes=True)
    device.trace_start(False, 100)
    assert device.shapes
    device.trace_stop()
    assert device.shapes


def test_the_profiler_counts_collectives_itself():
    device = Device()
    trace = SharedTrace(device)
    device.trace_start(False, 100)
    device.run("kernel")
    device.run("hccl::allreduce", (0, 1))
    assert names(device.trace_take()) == ["kernel"]
    assert names(trace.take()) == ["kernel", "hccl::allreduce"]


def test_lost_tasks_are_counted_over_several_logs():
    device = Device()
    trace = SharedTrace(device)
    device.lost = 3
    device.trace_start(False, 100)
    device.lost = 2
    trace.take()
    trace.take()
    assert trace.dropped == 5
