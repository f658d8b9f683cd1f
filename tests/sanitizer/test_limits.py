"""Kind h: limits of the card that this device does not have."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

import torch_npu
from softnpu import _C, chips, sanitizer
from tests.sanitizer import found_in, ready


@pytest.fixture
def small_chip(monkeypatch):
    """A chip that has three streams and four events left."""
    gc.collect()
    streams, events = _C.sanitizer_held()
    small = dataclasses.replace(chips.current(), max_streams=streams + 3, max_events=events + 4)
    monkeypatch.setattr(chips, "current", lambda: small)
    return small


def _graphs(count):
    x, graphs = ready(8), []
    for _ in range(count):
        graphs.append(torch.npu.NPUGraph())
        with torch.npu.graph(graphs[-1]):
            x + 1
    return x, graphs


def _forked_graphs(count):
    x, graphs, others = ready(8), [], [torch.npu.Stream(), torch.npu.Stream()]
    for _ in range(count):
        graphs.append(torch.npu.NPUGraph())
        with torch.npu.graph(graphs[-1]):
            main = torch.npu.current_stream()
            side = next(one for one in others if one != main)  # streams come from a pool
            side.wait_stream(main)
            with torch.npu.stream(side):
                x + 1
            main.wait_stream(side)
    return x, graphs


@pytest.mark.parametrize("work,fits", [(_graphs, 3), (_forked_graphs, 1)])
def test_more_streams_in_graphs_than_the_chip_has(small_chip, work, fits):
    held = []
    assert found_in(lambda: held.append(work(fits))) == []
    held.clear()
    (found,) = found_in(lambda: held.append(work(fits + 1)))
    assert found.kind == "h" and f"more streams than the {small_chip.max_streams}" in found.text


def test_graphs_that_were_reset_hold_nothing(small_chip):
    def program():
        for _ in range(6):
            graph = torch.npu.NPUGraph()
            with torch.npu.graph(graph):
                torch.ones(4, device="npu")
            graph.reset()

    assert found_in(program) == []


def test_more_events_than_the_chip_has(small_chip):
    def program(count):
        events = [torch.npu.Event() for _ in range(count)]
        for event in events:
            event.record()

    assert found_in(lambda: program(4)) == []
    (found,) = found_in(lambda: program(5))
    assert found.kind == "h" and f"the {small_chip.max_events} of the chip" in found.text


CAPTURED = {
    "npu_silu": lambda x: torch_npu.npu_silu(x),
    "npu_mish": lambda x: torch_npu.npu_mish(x),
    "npu_max": lambda x: torch_npu.npu_max(x, dim=0),
    "npu_transpose": lambda x: torch_npu.npu_transpose(x, [1, 0]),
    "npu_slice": lambda x: torch_npu.npu_slice(x, [0, 0], [2, 2]),
    "npu_pad": lambda x: torch_npu.npu_pad(x, [1, 1, 1, 1]),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_an_operator_that_the_card_cannot_capture(name):
    x = ready(4, 4)

    def captured():
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            CAPTURED[name](x)

    (found,) = found_in(captured)
    assert found.kind == "h" and found.text.startswith(name) and "cannot be captured" in found.text
    assert found_in(lambda: CAPTURED[name](x)) == []  # outside of a capture it is all right


@pytest.mark.parametrize(
    "work",
    [
        torch.relu,
        torch.sum,
        lambda x: torch_npu.npu_fast_gelu(x),
        lambda x: x @ x,
        torch.nn.functional.silu,
    ],
)
def test_operators_that_can_be_captured_are_silent(work):
    x = ready(4, 4)

    def captured():
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            work(x)

    assert found_in(captured) == []


def test_every_chip_says_its_limits():
    for name in chips.names():
        chip = chips.get(name)
        assert (chip.max_streams > 0) == (chip.max_events > 0)
    assert sanitizer.KINDS["h"]
