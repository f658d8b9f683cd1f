"""Marks and ranges."""

import threading
import time

import pytest
import torch

import torch_npu
from torch_npu.npu._mstx import _open, subscribe, unsubscribe
from torch_npu.npu.mstx import annotate

mstx = torch_npu.npu.mstx


@pytest.fixture
def records():
    seen = []
    subscribe(seen.append)
    yield seen
    unsubscribe(seen.append)


def test_without_listeners_nothing_is_kept():
    number = mstx.range_start("nobody")
    assert number > 0 and not _open
    mstx.range_end(number)
    mstx.mark("nobody")
    assert mstx.range_push("a") == 0 and mstx.range_push("b") == 1
    assert mstx.range_pop() == 1 and mstx.range_pop() == 0 and mstx.range_pop() == -1


def test_marks_and_ranges_reach_the_listener(records):
    stream = torch.npu.Stream()
    mstx.mark("here", stream, domain="mine")
    number = mstx.range_start("load", stream)
    time.sleep(0.002)
    mstx.range_end(number)
    mark, load = records
    assert (mark.message, mark.domain, mark.start_ns) == ("here", "mine", mark.end_ns)
    assert mark.stream == (0, stream.stream_id)
    assert load.message == "load" and load.end_ns - load.start_ns >= 2_000_000


def test_ranges_nest_by_thread_and_domain(records):
    assert mstx.range_push("outer") == 0
    assert mstx.range_push("inner") == 1
    assert mstx.range_push("other", domain="d") == 0
    depth = []
    thread = threading.Thread(target=lambda: depth.append(mstx.range_pop()))
    thread.start()
    thread.join()
    assert depth == [-1]
    assert (mstx.range_pop(), mstx.range_pop("d"), mstx.range_pop()) == (1, 0, 0)
    assert [r.message for r in records] == ["inner", "other", "outer"]


def test_a_range_ends_in_another_thread_and_only_in_its_domain(records):
    number = mstx.range_start("shared", domain="d")
    mstx.range_end(number)
    assert not records
    thread = threading.Thread(target=mstx.range_end, args=(number, "d"))
    thread.start()
    thread.join()
    assert [r.message for r in records] == ["shared"]


def test_decorators_and_blocks(records):
    @mstx.mstx_range("step")
    def step(x):
        return x + 1

    @annotate()
    def named():
        raise KeyError("still ends")

    assert step(1) == 2 and step.__name__ == "step"
    with pytest.raises(KeyError):
        named()
    with mstx.annotate("block", domain="d"):
        pass
    assert [(r.message, r.domain) for r in records] == [
        ("step", "default"),
        ("named", "default"),
        ("block", "d"),
    ]


def test_they_appear_in_torchs_profile():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with mstx.annotate("my range"):
            torch.ones(2, device="npu") + 1
        mstx.mark("my mark")
    names = {event.name for event in profile.events()}
    assert {"my range", "my mark"} <= names


@pytest.mark.parametrize(
    "call, answer, what",
    [
        (lambda: mstx.mark(""), None, "message for mstx.mark"),
        (lambda: mstx.mark("m", stream=3), None, "stream for mstx.mark"),
        (lambda: mstx.range_start(5), 0, "message for mstx.range_start"),
        (lambda: mstx.range_start("m", domain=""), 0, "domain for mstx.range_start"),
        (lambda: mstx.range_end("1"), None, "range_id for mstx.range_end"),
        (lambda: mstx.range_push("m", "stream"), -1, "stream for mstx.range_push"),
        (lambda: mstx.range_pop(None), -1, "domain for mstx.range_pop"),
    ],
)
def test_wrong_arguments_warn_and_never_raise(call, answer, what):
    with pytest.warns(UserWarning, match=f"Invalid {what}"):
        assert call() == answer
    assert isinstance(mstx(), mstx)


def test_the_calls_behind_can_be_replaced(monkeypatch):
    """Tools put their own functions into `torch_npu._C._mstx`."""
    seen = []
    monkeypatch.setattr(torch_npu._C._mstx, "_mark_on_host", lambda *given: seen.append(given))
    monkeypatch.setattr(torch_npu._C._mstx, "_range_push", lambda *given: len(given))
    torch.npu.mstx.mark("here", domain="mine")
    assert seen == [("here", "mine")]
    assert torch.npu.mstx.range_push("a", torch.npu.current_stream()) == 5
