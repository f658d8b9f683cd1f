"""Upstream's pass that makes marks by name of the streams and events in dynamo's graph."""

from __future__ import annotations

import pytest
import torch

import torchair


def streams_by_name(gm, example_inputs):
    """A program's backend: upstream's pass, then the graph as it stands."""
    from torchair._acl_concrete_graph.replace_stream_event import replace_stream_event_pass

    streams_by_name.graph = replace_stream_event_pass(gm)
    return streams_by_name.graph


def called():
    nodes = streams_by_name.graph.graph.find_nodes
    names = [n for n in streams_by_name.graph.graph.nodes if n.op == "call_function"]
    assert not nodes(op="call_function", target=torch.ops.streams.fork)
    return [(n.target.__name__, n.args) for n in names]


def test_the_streams_of_a_graph_become_marks_by_name():
    def overlapping(x):
        side, event = torch.npu.Stream(), torch.npu.Event()
        y = x + 2
        event.record()
        with torch.npu.stream(side):
            event.wait(side)
            z = torch.relu(y)
            z.record_stream(side)
        torch.npu.current_stream().wait_stream(side)
        return z

    x = torch.randn(3, 3, device="npu")
    result = torch.compile(overlapping, backend=streams_by_name, fullgraph=True)(x)
    torch.testing.assert_close(result, torch.relu(x + 2))
    names = [name for name, _ in called()]
    assert names == [
        "add",
        "tagged_event_record",
        "scope_enter",
        "tagged_event_wait_on_stream",
        "relu",
        "record_tagged_stream_",
        "scope_exit",
        "tagged_stream_wait_stream",
    ]
    marks = dict(called())
    tag, created_inside = marks["tagged_event_record"]
    assert tag.startswith("graph_")
    assert created_inside is True
    assert marks["tagged_event_wait_on_stream"][0] == tag
    assert marks["tagged_stream_wait_stream"][0] == "DEFAULT_STREAM_ID_MARKER"
    entered = dict(zip(*marks["scope_enter"], strict=True))
    assert entered["_user_stream_label"] == marks["record_tagged_stream_"][1]
    assert marks["tagged_stream_wait_stream"][3] == entered["_user_stream_id"]


def test_an_event_that_a_stream_makes_is_named_after_its_record():
    def recorded(x):
        outer, side = torch.npu.current_stream(), torch.npu.Stream()
        torch.npu.set_stream(side)
        side.record_event()
        y = x + 1
        torch.npu.set_stream(outer)
        return y

    x = torch.randn(3, device="npu")
    torch.testing.assert_close(torch.compile(recorded, backend=streams_by_name)(x), x + 1)
    assert dict(called())["tagged_event_record_on_stream"][0].endswith("_record_event")


def test_a_graph_must_leave_the_stream_that_it_found():
    def stray(x):
        torch.npu.set_stream(torch.npu.Stream())
        return x + 1

    with pytest.raises(RuntimeError, match="leaves another stream current than it found"):
        torch.compile(stray, backend=streams_by_name, fullgraph=True)(torch.ones(2, device="npu"))


def test_marks_by_name_run_on_their_streams_in_our_own_compiler():
    """Of a backend that calls the pass and hands the graph on."""

    def backend(gm, example_inputs):
        return torchair.get_npu_backend()(streams_by_name(gm, example_inputs), example_inputs)

    seen = []

    @torch.library.custom_op("softnpu_tests::which_stream", mutates_args=(), device_types="npu")
    def which_stream(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.npu.current_stream().stream_id)
        return x.clone()

    which_stream.register_fake(torch.empty_like)
    side = torch.npu.Stream()

    def overlapping(x):
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = which_stream(x)
        torch.npu.current_stream().wait_stream(side)
        return which_stream(y)

    x = torch.randn(3, device="npu")
    result = torch.compile(overlapping, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(result, x)
    assert seen == [side.stream_id, torch.npu.current_stream().stream_id]


def test_fake_record_stream_is_for_traces():
    with pytest.raises(RuntimeError, match="received one with data"):
        torch.npu.fake_record_stream(torch.ones(2, device="npu"), torch.npu.Stream())
