"""Captures that come and go keep nothing: neither memory of the device nor of the host."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

import torch_npu  # noqa: F401

FIELDS = [
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
]


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def host_bytes() -> int:
    """What the program holds of malloc."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        pytest.skip("mallinfo2 is glibc's")
    function.restype = Mallinfo
    gc.collect()
    now = function()
    return now.uordblks + now.hblkhd


def capture(x: torch.Tensor) -> None:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = (x * 2 + 1).relu()
    graph.replay()
    graph.reset()
    del y, graph


def test_two_thousand_captures_leave_nothing():
    x = torch.ones(16, device="npu")
    for _ in range(200):  # what is made once
        capture(x)
    before = torch.npu.memory_allocated(), torch.npu.memory_reserved()
    host = host_bytes()
    for _ in range(2000):
        capture(x)
    assert host_bytes() - host < 2000 * 8  # less than a pointer each
    assert (torch.npu.memory_allocated(), torch.npu.memory_reserved()) == before


def test_a_graph_that_goes_before_its_result_leaves_nothing():
    x = torch.ones(4, device="npu")
    stream = torch.npu.Stream()

    def once() -> None:
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, stream=stream):
            result = x + 1
        del graph  # before its result
        del result

    for _ in range(200):
        once()
    before = host_bytes()
    for _ in range(500):
        once()
    assert host_bytes() - before < 500 * 100
