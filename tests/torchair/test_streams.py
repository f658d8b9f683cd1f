"""Streams and events of torch.npu in compiled code: traced without a graph break, and kept on the device."""

from __future__ import annotations

import pytest
import torch

import torchair
from softnpu import _C
from tests.torchair.support import randn

BACKENDS = ["npu", "npugraph_ex", "npugraphs", "inductor"]
pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.fixture(autouse=True)
def same_stream():
    yield
    assert torch.npu.current_stream() == torch.npu.default_stream()


def blocks(x, y):
    side, other = torch.npu.Stream(), torch.npu.Stream()
    first, second = torch.npu.Event(), torch.npu.Event(enable_timing=True)
    both = x + y
    first.record()
    with torch.npu.stream(side):
        first.wait(side)
        product = both @ y
        second.record()
        both.record_stream(side)
    with torch.npu.stream(other):
        second.wait(other)
        last = product.relu()
    torch.npu.current_stream().wait_stream(other)
    return product, last * 2


def setting(x, y):
    before = torch.npu.current_stream()
    side = torch.npu.Stream(priority=-1)
    side.wait_stream(before)
    torch.npu.set_stream(side)
    z = x * y
    torch.npu.set_stream(before)
    before.wait_stream(side)
    return z + 1


def methods(x, y):
    main = torch.npu.default_stream()
    side = torch.npu.Stream()
    side.wait_event(main.record_event())
    with torch.npu.stream(side):
        z = x - y
    done = torch.npu.Event()
    side.record_event(done)
    main.wait_event(done)
    with torch.npu.stream(None):
        return z.abs()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [blocks, setting, methods])
def test_traced_as_one_graph(function, backend):
    x, y = randn(8, 8), randn(8, 8)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for factor in (1, 2, 3):
        result = compiled(x * factor, y)
        torch.npu.synchronize()
        torch.testing.assert_close(result, function(x * factor, y))


@pytest.mark.parametrize("backend", BACKENDS)
def test_objects_of_the_program(backend):
    """Streams and events made before the call; the event is waited for after it."""
    side, ready, done = torch.npu.Stream(), torch.npu.Event(), torch.npu.Event()

    def f(x):
        with torch.npu.stream(side):
            ready.wait()
            y = x * 2
            done.record()
        return y

    compiled = torch.compile(f, backend=backend, fullgraph=True)
    for factor in (1, 2):
        x = randn(8) * factor
        ready.record()
        result = compiled(x)
        done.wait()
        assert torch.equal(result + 1, x * 2 + 1)
        done.synchronize()
        assert done.query()


def test_traced_synchronize():
    def f(x):
        y = x + 1
        torch.npu.synchronize()
        torch.npu.current_stream().synchronize()
        return y * 2

    for backend in BACKENDS:
        torch._dynamo.reset()
        x = randn(4)
        assert torch.equal(torch.compile(f, backend=backend, fullgraph=True)(x), (x + 1) * 2)


def streams_of_operators(call):
    _C.trace_start(False, 10000)
    try:
        call()
    finally:
        _C.trace_stop()
    return {name: stream for name, _, _, stream, *_ in _C.trace_take()}


@pytest.mark.parametrize("backend", ["npu"])
def test_streams_of_the_program_are_on_the_timeline(backend):
    side = torch.npu.Stream()

    def f(x):
        y = x.exp()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            z = y.sin()
        torch.npu.current_stream().wait_stream(side)
        return z.tanh()

    compiled = torch.compile(f, backend=backend, fullgraph=True)
    x = randn(16)
    compiled(x)
    streams = streams_of_operators(lambda: compiled(x))
    of = {name: stream for name, stream in streams.items() if name.startswith("aten::")}
    assert of["aten::sin"] == side.stream_id
    assert of["aten::exp"] == of["aten::tanh"] != side.stream_id


@pytest.mark.parametrize("mode", ["max-autotune"])
def test_tagged_streams_are_on_the_timeline(mode):
    def f(x):
        y = x.exp()
        with torchair.scope.npu_stream_switch("side"):
            z = torchair.scope.npu_wait_tensor(y, y).sin()
        return z, y.tanh()

    config = torchair.CompilerConfig()
    config.mode = mode
    compiled = torch.compile(f, backend=torchair.get_npu_backend(compiler_config=config))
    x = randn(16)
    compiled(x)
    of = streams_of_operators(lambda: compiled(x))
    assert of["aten::exp"] == of["aten::tanh"] != of["aten::sin"]


def test_streams_are_attributes_of_the_graph(tmp_path):
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = "txt"
    config.debug.graph_dump.path = str(tmp_path)
    backend = torchair.get_npu_backend(compiler_config=config)
    torch.compile(setting, backend=backend, fullgraph=True)(randn(4), randn(4))
    (text,) = [p.read_text() for p in tmp_path.iterdir() if "optimized" in p.name]
    assert text.count("_user_stream_label") == 1


def test_the_stream_must_be_set_back():
    def f(x):
        torch.npu.set_stream(torch.npu.Stream())
        return x + 1

    with pytest.raises(RuntimeError, match="leaves another stream current than it found"):
        torch.compile(f, backend="npugraph_ex", fullgraph=True)(randn(4))


def test_set_stream_in_a_block_breaks_the_graph():
    def f(x):
        before, side = torch.npu.current_stream(), torch.npu.Stream()
        with torch.npu.stream(side):
            y = x + 1
            torch.npu.set_stream(before)
            return y * 2

    x = randn(4)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="set_stream inside a block"):
        torch.compile(f, backend="npu", fullgraph=True)(x)


def test_captured_once_a_shape(monkeypatch):
    from torchair import _capture

    captures = []
    before = _capture.Captured._capture
    monkeypatch.setattr(
        _capture.Captured, "_capture", lambda self, given: captures.append(1) or before(self, given)
    )
    compiled = torch.compile(blocks, backend="npugraph_ex", fullgraph=True, dynamic=False)
    for _ in range(3):
        compiled(randn(8, 8), randn(8, 8))
    assert len(captures) == 1
