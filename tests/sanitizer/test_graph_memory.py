"""Kind d: memory of graphs: pools that are shared, inputs that are gone, pinned buffers that are changed."""

from __future__ import annotations

import contextlib

import pytest
import torch

from softnpu import _C
from tests.sanitizer import found_in, ready, streams


def _captured(work, pool=None):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        result = work()
    return graph, result


def _input_freed(order):
    x = ready(64)
    graph, _ = _captured(lambda: x * 2)
    if not order:
        del x
    graph.replay()


def _one_of_two_inputs_freed(order):
    x, y = ready(64), ready(64)
    graph, _ = _captured(lambda: x * y)
    if not order:
        y = None
    graph.replay()
    return y


def _weight_replaced(order):
    layer, x = torch.nn.Linear(8, 8).npu(), ready(2, 8)
    with torch.no_grad():
        graph, _ = _captured(lambda: layer(x))
        if order:
            layer.weight.copy_(torch.zeros(8, 8))
        else:
            layer.weight = torch.nn.Parameter(torch.zeros(8, 8).npu())
    graph.replay()


def _input_resized(order):
    x = ready(64)
    graph, _ = _captured(lambda: x * 2)
    x.resize_(64 if order else 4096)
    with (
        contextlib.nullcontext() if order else pytest.raises(RuntimeError, match="lost the memory")
    ):
        graph.replay()


def _second_replay_after_the_input_is_gone(order):
    x = ready(64)
    graph, _ = _captured(lambda: x + 1)
    graph.replay()
    if not order:
        x = x.clone()
    graph.replay()
    return x


def _pinned_input_changed(order):
    host, x = torch.ones(1024).pin_memory(), ready(1024)
    graph, _ = _captured(lambda: x.copy_(host, non_blocking=True))
    graph.replay()
    if order:
        torch.npu.synchronize()
    host.fill_(2)


def _pinned_output_read(order):
    host, x = torch.ones(1024).pin_memory(), ready(1024)
    graph, _ = _captured(lambda: host.copy_(x, non_blocking=True))
    graph.replay()
    if order:
        torch.npu.current_stream().synchronize()
    host.sum()


def _result_overwritten_by_another_graph(order):
    x = ready(64)
    first, result = _captured(lambda: x * 2)
    weak = _C.pool_ref_tensor(result)
    del result  # its bytes may serve the next graph of the pool
    second, other = _captured(lambda: x * 3, pool=first.pool())
    first.replay()
    if order:
        weak.sum()
    second.replay()
    if not order:
        weak.sum()
    return other


PROGRAMS = [
    _input_freed, _one_of_two_inputs_freed, _weight_replaced, _input_resized, _second_replay_after_the_input_is_gone,
    _pinned_input_changed, _pinned_output_read, _result_overwritten_by_another_graph,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_misuse_of_a_graphs_memory_is_found(program):
    assert [f.kind for f in found_in(lambda: program(False))] == ["d"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert found_in(lambda: program(True)) == []


def _replay_and_read_aside(order):
    x, (s,) = ready(64), streams(1)
    graph, result = _captured(lambda: x * 2)
    graph.replay()
    if order:
        s.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(s):
        result.sum()


def _input_written_aside(order):
    x, (s,) = ready(64), streams(1)
    graph, _ = _captured(lambda: x * 2)
    with torch.npu.stream(s):
        x.fill_(3)
    if order:
        torch.npu.current_stream().wait_stream(s)
    graph.replay()


def _two_replays_at_once(order):
    x, (s, t) = ready(64), streams()
    graph, _ = _captured(lambda: x * 2)
    with torch.npu.stream(s):
        graph.replay()
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        graph.replay()


def _fork_in_a_capture(order):
    x, others = ready(64), streams(2)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        main = torch.npu.current_stream()
        s = next(one for one in others if one != main)  # streams come from a pool
        s.wait_stream(main)
        if order:
            x.add_(1)
            s.wait_stream(main)
        with torch.npu.stream(s):
            y = x * 2
        if not order:
            x.add_(1)
        main.wait_stream(s)
    return graph, y


RACES = [_replay_and_read_aside, _input_written_aside, _two_replays_at_once, _fork_in_a_capture]


@pytest.mark.parametrize("program", RACES, ids=lambda p: p.__name__.strip("_"))
def test_a_replay_races_as_a_whole(program):
    found = found_in(lambda: program(False))
    assert {f.kind for f in found} == {"a"}
    assert found_in(lambda: program(True)) == []


def test_replays_on_one_stream_and_updates_are_silent():
    def program():
        x = ready(64)
        first, one = _captured(lambda: (x * 2).relu())
        second, two = _captured(lambda: (x * 3).relu(), pool=first.pool())
        for _ in range(3):
            x.add_(1)
            first.replay()
            one.sum().item()
            second.replay()
            two.sum().item()

    assert found_in(program) == []
