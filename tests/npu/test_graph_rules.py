"""What a capture forbids, forks and joins of streams in it, and blocked streams outside of it."""

import concurrent.futures
import threading
import time

import pytest
import torch


@pytest.fixture(autouse=True)
def device_stays_usable():
    yield
    x = torch.ones(3, device="npu")
    assert (x + 1).sum().item() == 6
    torch.npu.synchronize()
    assert not torch.npu.is_current_stream_capturing()


def capture(work, **options):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        work()
    return graph


# --- forbidden in a capture ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda x: x.sum().item(), 107027),
        (lambda x: x.cpu(), 107027),
        (lambda x: x.tolist(), 107027),
        (lambda x: bool(x.any()), 107027),
        (lambda x: x.nonzero(), 107027),
        (lambda x: x[x > 0], 107027),
        (lambda x: x.copy_(torch.ones(3)), 107027),
        (lambda x: torch.npu.current_stream().synchronize(), 107027),
        (lambda x: torch.npu.current_stream().query(), 107027),
        (lambda x: torch.npu.synchronize(), 107030),
        (lambda x: torch.npu.current_stream().record_event().synchronize(), 107028),
    ],
)
def test_waiting_for_the_device_ends_the_capture(work, code):
    x = torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match=f"error code is {code}"):
        capture(lambda: work(x))
    assert x.tolist() == [1, 1, 1]


def test_a_refused_wait_does_not_spoil_the_capture():
    x = torch.zeros(2, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        x.add_(5)
        with pytest.raises(RuntimeError, match="107027"):
            x.sum().item()
        graph.capture_end()
    assert x.tolist() == [0, 0]
    graph.replay()
    assert x.tolist() == [5, 5]


def test_a_failed_capture_stays_failed_and_is_undone():
    x = torch.zeros(2, device="npu")
    outside = torch.npu.Event()
    outside.record()
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        x.add_(5)
        with pytest.raises(RuntimeError, match="107024"):
            outside.wait()
        with pytest.raises(RuntimeError, match="the capture has failed"):
            x.mul_(2)
        with pytest.raises(RuntimeError, match="107024"):
            graph.capture_end()
    assert x.tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_an_error_inside_the_block_is_the_one_that_is_seen():
    x = torch.zeros(2, device="npu")
    with pytest.raises(ZeroDivisionError):
        capture(lambda: x.add_(1 / 0))
    with pytest.raises(RuntimeError, match="must match the size"):
        capture(lambda: x + torch.ones(3, device="npu"))


def test_error_modes_decide_about_other_threads():
    def wait_elsewhere(mode):
        errors = []

        def wait():
            try:
                torch.npu.synchronize()
            except RuntimeError as error:
                errors.append(str(error))

        graph = torch.npu.NPUGraph()
        with torch.npu.stream(torch.npu.Stream()):
            graph.capture_begin(capture_error_mode=mode)
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join()
            try:
                graph.capture_end()
            except RuntimeError as error:
                errors.append(str(error))
        return errors

    assert [e for e in wait_elsewhere("global") if "107030" in e]
    assert wait_elsewhere("thread_local") == []
    assert wait_elsewhere("relaxed") == []
    with pytest.raises(RuntimeError, match="thread_local"):
        capture(lambda: None, capture_error_mode="strict")


def test_relaxed_mode_lets_this_thread_wait_for_the_device():
    x = torch.ones(2, device="npu")
    graph = capture(lambda: (torch.npu.synchronize(), x.add_(1)), capture_error_mode="relaxed")
    graph.replay()
    assert x.tolist() == [2, 2]


def test_begin_and_end_belong_together():
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="before capture_begin"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    one, other = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(one):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="107027"):
            torch.npu.NPUGraph().capture_begin()
    with torch.npu.stream(other), pytest.raises(RuntimeError, match="(?s)107036.*same stream"):
        graph.capture_end()
    with torch.npu.stream(one):
        graph.capture_end()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()


def test_a_graph_is_not_replayed_inside_a_capture():
    x = torch.zeros(1, device="npu")
    inner = capture(lambda: x.add_(1))
    with pytest.raises(RuntimeError, match="107027"):
        capture(inner.replay)


def test_a_graph_dropped_in_the_middle_of_its_capture():
    x = torch.zeros(1, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        x.add_(1)
        del graph
        assert not torch.npu.is_current_stream_capturing()
    assert x.item() == 0


def test_bad_arguments():
    with pytest.raises(TypeError, match="graph_pool_handle"):
        capture(lambda: None, pool="mine")
    with pytest.raises(TypeError, match="keep_graph"):
        torch.npu.NPUGraph(keep_graph=1)


def other_stream():
    """One that the capture does not use: streams come round again after 32."""
    while True:
        stream = torch.npu.Stream()
        if stream != torch.npu.graph.default_capture_stream:
            return stream


# --- several streams ----------------------------------------------------------------------------------------------


def test_fork_and_join():
    x = torch.ones(4, device="npu")
    side = other_stream()

    def work():
        here = torch.npu.current_stream()
        y = x * 2
        side.wait_stream(here)
        with torch.npu.stream(side):
            assert torch.npu.is_current_stream_capturing()
            z = y + 1
        w = y - 1
        here.wait_stream(side)
        x.copy_(z * w)

    graph = capture(work)
    graph.replay()
    assert x.tolist() == [3.0] * 4
    graph.replay()
    assert x.tolist() == [35.0] * 4
    assert not torch.npu.is_current_stream_capturing()


def test_a_fork_that_is_not_joined():
    x = torch.ones(4, device="npu")
    side = other_stream()

    def work():
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            x.add_(1)

    with pytest.raises(RuntimeError, match="(?s)107025.*not joined"):
        capture(work)
    assert x.tolist() == [1.0] * 4


def test_work_after_the_join_must_be_joined_too():
    x = torch.ones(4, device="npu")
    side = other_stream()

    def work():
        here = torch.npu.current_stream()
        side.wait_stream(here)
        with torch.npu.stream(side):
            x.add_(1)
        here.wait_stream(side)
        with torch.npu.stream(side):
            x.add_(1)

    with pytest.raises(RuntimeError, match="107025"):
        capture(work)


def test_joins_through_a_third_stream():
    x = torch.zeros(2, device="npu")
    a, b = other_stream(), other_stream()

    def work():
        here = torch.npu.current_stream()
        a.wait_stream(here)
        with torch.npu.stream(a):
            x.add_(1)
        b.wait_stream(a)
        with torch.npu.stream(b):
            x.mul_(3)
        here.wait_stream(b)

    graph = capture(work)
    graph.replay()
    assert x.tolist() == [3.0, 3.0]


def test_an_event_from_outside_and_the_default_stream_are_refused():
    event = torch.npu.Event()
    event.record()
    with pytest.raises(RuntimeError, match="107024"):
        capture(lambda: event.wait())
    with pytest.raises(RuntimeError, match="107031"):
        capture(lambda: torch.npu.default_stream().wait_stream(torch.npu.current_stream()))


def test_two_captures_do_not_meet():
    one, two = torch.npu.Stream(), torch.npu.Stream()
    first, second = torch.npu.NPUGraph(), torch.npu.NPUGraph()
    with torch.npu.stream(one):
        first.capture_begin()
        event = one.record_event()
    with torch.npu.stream(two):
        second.capture_begin()
        with pytest.raises(RuntimeError, match="107032"):
            event.wait(two)
        with pytest.raises(RuntimeError, match="107032"):
            second.capture_end()
    with torch.npu.stream(one), pytest.raises(RuntimeError, match="107032"):
        first.capture_end()


# --- blocked streams ----------------------------------------------------------------------------------------------


def test_launches_behind_a_wait_queue_and_run_in_order():
    event = torch.npu.ExternalEvent()
    blocked = torch.npu.Stream()
    x = torch.zeros(3, device="npu")
    with torch.npu.stream(blocked):
        event.wait()
        x.add_(1)
        y = x * 10
        z = torch.cat([y, y]).reshape(2, 3)
        x.add_(1)
    assert z.shape == (2, 3) and not blocked.query()
    assert x.tolist() == [0, 0, 0], "other streams go on, and see what was there"
    event.record(torch.npu.Stream())
    assert blocked.query()
    assert x.tolist() == [2.0] * 3 and z.tolist() == [[10.0] * 3] * 2


def test_an_event_recorded_first_does_not_block():
    event = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    event.record(stream)
    event.wait(stream)
    event.reset(stream)
    assert stream.query()
    event.wait(stream)
    assert not stream.query()
    event.record(torch.npu.current_stream())
    assert stream.query()


def test_events_carry_a_wait_to_other_streams():
    gate = torch.npu.ExternalEvent()
    a, b = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(2, device="npu")
    gate.wait(a)
    with torch.npu.stream(a):
        x.add_(1)
    done = torch.npu.Event(enable_timing=True)
    done.record(a)
    assert not done.query()
    b.wait_event(done)
    with torch.npu.stream(b):
        x.mul_(5)
    assert x.tolist() == [0, 0]
    gate.record()
    b.synchronize()
    assert done.query() and x.tolist() == [5.0, 5.0]
    assert done.recorded_time() > 0


def test_copies_and_host_functions_wait_their_turn():
    gate = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    host, back = torch.arange(3.0).pin_memory(), torch.zeros(3).pin_memory()
    x = torch.zeros(3, device="npu")
    called = []
    torch.npu._subscribe_report(stream)
    with torch.npu.stream(stream):
        gate.wait()
        x.copy_(host, non_blocking=True)
        torch.npu._launch_host_func(stream, called.append, "copied")
        back.copy_(x, non_blocking=True)
    host.add_(1)
    assert called == [] and back.tolist() == [0] * 3
    gate.record()
    stream.synchronize()
    assert called == ["copied"] and back.tolist() == [1.0, 2.0, 3.0]
    torch.npu._unsubscribe_report(stream)


def test_fused_operators_queue_too():
    import torch_npu

    gate = torch.npu.ExternalEvent()
    x, gamma = torch.randn(4, 8).npu(), torch.rand(8).npu()
    expected = torch_npu.npu_rms_norm(x, gamma)
    with torch.npu.stream(torch.npu.Stream()):
        gate.wait()
        y, rstd = torch_npu.npu_rms_norm(x, gamma)
        loss = torch.nn.functional.mse_loss(y, expected[0])
    gate.record()
    assert torch.equal(y, expected[0]) and torch.equal(rstd, expected[1]) and loss.item() == 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda s, x: s.synchronize(),
        lambda s, x: torch.npu.synchronize(),
        lambda s, x: s.record_event().synchronize(),
        lambda s, x: _on(s, lambda: x.sum().item()),
        lambda s, x: _on(s, lambda: x.cpu()),
        lambda s, x: _on(s, lambda: x.nonzero()),
    ],
)
def test_a_wait_that_can_never_end_is_an_error(wait):
    gate = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    x = torch.ones(2, device="npu")
    torch.npu.synchronize()
    gate.wait(stream)
    with pytest.raises(RuntimeError, match=rf"would never return: .*stream {stream.stream_id}.*"):
        wait(stream, x)
    gate.record()
    stream.synchronize()


def test_idle_threads_of_an_executor_do_not_keep_such_a_wait_alive():
    gate, stream = torch.npu.ExternalEvent(), torch.npu.Stream()
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        list(executor.map(time.sleep, [0.01, 0.01]))
        gate.wait(stream)
        with pytest.raises(RuntimeError, match="would never return"):
            stream.synchronize()
        executor.submit(lambda: (time.sleep(0.2), gate.record(torch.npu.default_stream())))
        stream.synchronize()  # one that works may record it


def _on(stream, work):
    with torch.npu.stream(stream):
        return work()


def test_another_thread_opens_the_gate():
    gate = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    x = torch.zeros(2, device="npu")
    gate.wait(stream)
    with torch.npu.stream(stream):
        x.add_(7)
    timer = threading.Timer(0.2, gate.record)
    timer.start()
    stream.synchronize()
    assert x.tolist() == [7.0, 7.0]
    timer.join()


def test_no_capture_on_a_blocked_device():
    gate = torch.npu.ExternalEvent()
    blocked = torch.npu.Stream()
    gate.wait(blocked)
    with torch.npu.stream(torch.npu.Stream()), pytest.raises(RuntimeError, match="107030"):
        torch.npu.NPUGraph().capture_begin()
    gate.record()


def test_memory_of_queued_work_is_not_reused():
    gate = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        gate.wait()
        x = torch.full((1024,), 3.0, device="npu")
        y = x + 1
        del x
        others = [torch.zeros(1024, device="npu") for _ in range(4)]
    gate.record()
    stream.synchronize()
    assert y.sum().item() == 4096 and all(o.sum().item() == 0 for o in others)


def test_an_error_in_queued_work_reaches_who_opens_the_gate():
    gate = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    table, index = torch.ones(4, 2, device="npu"), torch.tensor([9]).npu()
    with torch.npu.stream(stream):
        gate.wait()
        torch.nn.functional.embedding(index, table)
    with pytest.raises(IndexError):
        gate.record()
    stream.synchronize()
