"""torchair.ops: printing, attention with lengths on the device, events and streams by tag, record and wait."""

from __future__ import annotations

import math

import pytest
import torch

import torch_npu
import torchair
from tests.torchair.support import randn
from torchair.ops import _tagged
from torchair.ops._print import summary

pytestmark = pytest.mark.usefixtures("uncompiled")


def compiled(function, **options):
    return torch.compile(function, backend="npu", fullgraph=True, **options)


def test_print_in_a_graph(capsys):
    def f(x):
        torchair.ops.npu_print("hello, tensor:", x)
        return x + 1

    compiled(f)(torch.arange(10, device="npu"))
    assert capsys.readouterr().out == "hello, tensor: [0 1 2 ... 7 8 9]\n"


def test_print_details_and_order(capsys):
    def f(x):
        torchair.ops.npu_print("first", x, tensor_detail=True)
        y = x * 2
        torchair.ops.npu_print(y, "{}", 3, True, summarize_size=-1)

    compiled(f)(torch.arange(8, device="npu"))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "first tensor([0 1 2 ... 5 6 7], shape=[8], dtype=torch.int64)"
    assert second == "[0 2 4 6 8 10 12 14] {} 3 True"


def test_print_runs_every_time(capsys):
    def f(x):
        torchair.ops.npu_print(x)

    g = compiled(f)
    g(torch.ones(2, device="npu"))
    g(torch.zeros(2, device="npu"))
    assert capsys.readouterr().out == "[1 1]\n[0 0]\n"


@pytest.mark.parametrize(
    ("tensor", "count", "text"),
    [
        (torch.tensor(2.5), 3, "2.5"),
        (torch.tensor([1.5, -2.0]).bfloat16(), 3, "[1.5 -2]"),
        (torch.arange(16).view(4, 4), 1, "[[0 ... 3]\n ...\n [12 ... 15]]"),
        (torch.tensor([True, False]), 3, "[1 0]"),
        (torch.zeros(0), 3, "[]"),
    ],
)
def test_summary(tensor, count, text):
    assert summary(tensor, count) == text


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        (("no tensor",), {}, ValueError, "expected at least one tensor"),
        (([1],), {}, TypeError, "received list at position 0"),
        ((torch.ones(1),), {"summarize_size": 0}, ValueError, "must be positive, or -1 for all"),
        ((torch.ones(1),), {"summarize_size": 1.5}, TypeError, "summarize_size must be an int"),
        ((torch.ones(1),), {"tensor_detail": 1}, TypeError, "tensor_detail must be a bool"),
    ],
)
def test_print_refuses(args, options, error, message):
    with pytest.raises(error, match=message):
        torchair.ops.npu_print(*args, **options)


def lengths(*values):
    return torch.tensor(values, device="npu")


def test_attention_with_lengths_on_the_device():
    q, k, v = (randn(2, 4, s, 16, dtype=torch.float16) for s in (8, 32, 32))
    options = {"num_heads": 4, "input_layout": "BNSD", "scale": 1 / math.sqrt(16)}

    def f(q, k, v, queries, keys):
        return torchair.ops.npu_fused_infer_attention_score(
            q, k, v, actual_seq_lengths=queries, actual_seq_lengths_kv=keys, **options
        )

    g = compiled(f)
    for keys in ((20, 32), (7, 13)):  # the same graph for other lengths
        actual = g(q, k, v, lengths(8, 5), lengths(*keys))
        expected = torch_npu.npu_fused_infer_attention_score(
            q, k, v, actual_seq_lengths=[8, 5], actual_seq_lengths_kv=list(keys), **options
        )
        for mine, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_attention_v2_with_lengths_on_the_device():
    q, k, v = (randn(2, 4, s, 16, dtype=torch.float16) for s in (1, 32, 32))
    options = {"num_query_heads": 4, "input_layout": "BNSD", "softmax_scale": 0.25}

    def f(q, k, v, keys):
        return torchair.ops.npu_fused_infer_attention_score_v2(
            q, k, v, actual_seq_kvlen=keys, **options
        )[0]

    actual = compiled(f)(q, k, v, lengths(20, 32))
    expected, _ = torch_npu.npu_fused_infer_attention_score_v2(
        q, k, v, actual_seq_kvlen=[20, 32], **options
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", ["", "_v2"])
def test_attention_is_for_graphs(name):
    q = randn(1, 1, 4, 16, dtype=torch.float16)
    with pytest.raises(NotImplementedError, match=f"score{name} runs in graphs of mode max-auto"):
        getattr(torchair.ops, f"npu_fused_infer_attention_score{name}")(q, q, q)


def test_attention_lengths_are_int64():
    q = randn(1, 1, 4, 16, dtype=torch.float16)
    f = compiled(
        lambda q, n: torchair.ops.npu_fused_infer_attention_score(
            q, q, q, actual_seq_lengths=n, input_layout="BNSD"
        )
    )
    with pytest.raises(
        Exception, match="actual_seq_lengths of dtype torch.int64, received torch.int32"
    ):
        f(q, lengths(4).int())


@pytest.fixture
def event(request):
    event = torchair.ops.npu_create_tagged_event(tag=request.node.name)
    yield event
    _tagged._events.clear()
    _tagged._tags.clear()


def test_tagged_events(event):
    assert isinstance(event, torch.npu.Event)

    def f(x):
        y = x * 2
        torchair.ops.npu_tagged_event_record(event)
        with torchair.scope.npu_stream_switch("side"):
            torchair.ops.npu_tagged_event_wait(event)
            z = y + 1
            torchair.ops.npu_record_tagged_stream(y, "side")
        return z

    x = randn(4)
    assert torch.equal(torch.compile(f, backend="npu")(x), x * 2 + 1)
    assert event.query()


def test_tagged_events_eagerly(event):
    torchair.ops.npu_tagged_event_record(event)
    torchair.ops.npu_tagged_event_wait(event)
    torchair.ops.npu_record_tagged_stream(randn(4), "side")
    assert event.query()


def test_tags_are_taken_once(event, request):
    with pytest.raises(ValueError, match="is already in use"):
        torchair.ops.npu_create_tagged_event(request.node.name)


def test_events_without_tag():
    with pytest.raises(ValueError, match="has no tag: make it with"):
        torchair.ops.npu_tagged_event_record(torch.npu.Event())


def test_record_and_wait():
    def f(x):
        with torchair.scope.npu_stream_switch("1"):
            product = torch.mm(x, x)
            absolute = torch.abs(product)
            done = torchair.ops.record()
        total = torch.add(absolute, 1)
        torchair.ops.wait([done])
        return total, torch.sub(x, product)

    x = randn(3, 3)
    for mine, theirs in zip(compiled(f)(x), (torch.abs(x @ x) + 1, x - x @ x), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("value", [[], None, [1], torch.ones(1)])
def test_wait_refuses(value):
    with pytest.raises(ValueError, match="torchair.ops.wait: expected"):
        torchair.ops.wait(value)
