"""torchair.scope: attributes of operators in a range, and streams on which they run."""

from __future__ import annotations

import pytest
import torch

import torchair
from softnpu import chips
from tests.sanitizer import found_in
from tests.torchair.support import randn
from torchair.ops import _tagged
from torchair.scope import _attributes

pytestmark = pytest.mark.usefixtures("uncompiled")


def attributes(function, *inputs):
    """The attributes of each operator of the compiled function, by name of the node; and the results."""
    found = {}
    config = torchair.CompilerConfig()
    config.post_grad_custom_post_pass = lambda gm, inputs, config: found.update(
        {node.name: a for node, a in _attributes.attributes_of(gm).items()}
    )
    backend = torchair.get_npu_backend(compiler_config=config)
    return found, torch.compile(function, backend=backend, fullgraph=True)(*inputs)


def test_limit_core_num():
    def f(x):
        with torchair.scope.limit_core_num(4, 5):
            y = x + 1
        return y * 2

    x = randn(4)
    found, result = attributes(f, x)
    assert found == {"add": {"_op_aicore_num": "4", "_op_vectorcore_num": "5"}}
    assert torch.equal(result, (x + 1) * 2)


@pytest.mark.parametrize("cores", [(0, 1), (1, 0), (10**6, 1), (1, 10**6)])
def test_limit_core_num_knows_the_chip(cores):
    chip = chips.current()
    most = chip.cube_cores if cores[0] != 1 else chip.vector_cores
    with (
        pytest.raises(ValueError, match=rf"limit_core_num: expected op_\w+ in \[1, {most}\] on"),
        torchair.scope.limit_core_num(*cores),
    ):
        pass


def test_super_kernel_and_none_inside():
    def f(x):
        with torchair.scope.super_kernel("sk", "stream-fusion=1"):
            y = x + 1
            with torchair.scope.super_kernel(None):
                z = y * 2
            return z - 3

    found, _ = attributes(f, randn(4))
    mark = {"_super_kernel_scope": "sk", "_super_kernel_options": "stream-fusion=1"}
    assert found == {"add": mark, "mul": {}, "sub": mark}


def test_op_never_timeout_nests():
    def f(x):
        with torchair.scope.op_never_timeout():
            y = x + 1
            with torchair.scope.op_never_timeout(False):
                return y * 2

    found, _ = attributes(f, randn(4))
    assert found == {
        "add": {"_op_exec_never_timeout": True},
        "mul": {"_op_exec_never_timeout": False},
    }
    with pytest.raises(TypeError, match="enable must be a bool, received int"):
        torchair.scope.op_never_timeout(1)


def test_stream_switch_attributes():
    def f(x):
        with torchair.scope.npu_stream_switch("1", 3, enable_inner_parallel=False):
            return x + 1

    found, _ = attributes(f, randn(4))
    assert found["add"] == {
        "_user_stream_label": "1",
        "_user_stream_priority": "3",
        "_enable_inner_parallel": False,
    }
    with pytest.raises(TypeError, match="stream_tag must be a str, received int"):
        torchair.scope.npu_stream_switch(1)


def test_the_graph_orders_the_streams_of_scopes():
    """As GE does: what a node reads is there, what it reads stays until then, and results are the caller's."""

    def f(x):
        y = x * 2
        with torchair.scope.npu_stream_switch("ordered"):
            z = y.sin()
        return (z + 1).cos(), y.exp()

    compiled = torch.compile(f, backend="npu", fullgraph=True)

    def program():
        x = randn(512)
        for one, other in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(one, other)

    assert found_in(lambda: [program() for _ in range(3)]) == []


def test_operators_run_on_their_streams():
    """Memory tells: what is computed on a stream is allocated from its pool."""

    def f(x):
        y = x * 2
        with torchair.scope.npu_stream_switch("timeline"):
            torchair.scope.npu_wait_tensor(x, y)
            z = x.repeat(4096)
        return y, z

    x = randn(512)
    y, z = torch.compile(f, backend="npu", fullgraph=True)(x)
    assert torch.equal(y, x * 2) and torch.equal(z, x.repeat(4096))
    stream = _tagged.stream_of("timeline", 0)
    owners = {
        segment["stream"]
        for segment in torch.npu.memory_snapshot()
        if segment["address"] <= z.data_ptr() < segment["address"] + segment["total_size"]
    }
    assert owners == {stream.stream_id}


def test_wait_tensor_is_for_graphs():
    with pytest.raises(NotImplementedError, match="npu_wait_tensor orders operators of a graph"):
        torchair.scope.npu_wait_tensor(randn(2), randn(2))


def test_data_dump_marks():
    def f(x):
        with torchair.scope.data_dump():
            return x + 1

    assert attributes(f, randn(4))[0] == {"add": {"torchair_enable_data_dump": "True"}}


@pytest.mark.parametrize("which", ["enter", "exit"])
def test_unpaired_marks_are_refused(which):
    def cut(gm, inputs, config):
        node = next(n for n in gm.graph.nodes if n.op == "call_function")
        with gm.graph.inserting_before(node):
            if which == "enter":
                gm.graph.call_function(torch.ops.air.scope_enter.default, (["a"], ["b"]))
            else:
                gm.graph.call_function(torch.ops.air.scope_exit.default, ())

    config = torchair.CompilerConfig()
    config.post_grad_custom_post_pass = cut
    backend = torchair.get_npu_backend(compiler_config=config)
    with pytest.raises(Exception, match="They come in pairs"):
        torch.compile(lambda x: x + 1, backend=backend)(randn(2))


def test_marks_from_a_pass():
    """A pass may write the marks itself."""

    def streams(gm, inputs, config):
        for node in list(gm.graph.nodes):
            if node.target is torch.ops.aten.mm.default:
                with gm.graph.inserting_before(node):
                    gm.graph.call_function(
                        torch.ops.air.scope_enter.default, (["_user_stream_label"], ["stream_1"])
                    )
            if node.target is torch.ops.aten.abs.default:
                with gm.graph.inserting_after(node):
                    record = gm.graph.call_function(torch.ops.air.record.default, ())
                with gm.graph.inserting_after(record):
                    gm.graph.call_function(torch.ops.air.scope_exit.default, ())
            if node.target is torch.ops.aten.sub.Tensor:
                with gm.graph.inserting_before(node):
                    gm.graph.call_function(torch.ops.air.wait.default, ([record],))

    def f(x):
        product = torch.mm(x, x)
        return torch.abs(product) + 1, x - product

    config = torchair.CompilerConfig()
    config.post_grad_custom_pre_pass = streams
    backend = torchair.get_npu_backend(compiler_config=config)
    x = randn(3, 3)
    for mine, theirs in zip(torch.compile(f, backend=backend)(x), f(x), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_marks_leave_no_trace_in_host_code(uncompiled):
    def f(x, y):
        with torchair.scope.super_kernel("sk"), torchair.scope.limit_core_num(2, 2):
            total = x + y
            done = torchair.ops.record()
        torchair.ops.wait([done])
        return torchair.scope.npu_wait_tensor(x, total) * 2

    x = randn(4)
    assert torch.equal(torch.compile(f, backend="npu", fullgraph=True)(x, x), x * 2)
    assert not any("air." in str(node.target) for node in uncompiled[0].graph.nodes)
