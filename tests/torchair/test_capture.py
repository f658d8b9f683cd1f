"""Modes reduce-overhead and npugraph_ex, backend npugraphs: captured once a shape, replayed, updated."""

from __future__ import annotations

import logging

import pytest
import torch

import torch_npu
import torchair
from tests.torchair.support import randn
from torchair import _capture
from torchair.core.utils import logger

pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.fixture
def captured(monkeypatch):
    """Every Captured that was made, and how often it captured."""
    made = []
    before = _capture.Captured.__init__

    def remember(self, *args, **kwargs):
        before(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(_capture.Captured, "__init__", remember)
    return made


def compiled(function, options=None, **rest):
    return torch.compile(function, backend="npugraph_ex", options=options, **rest)


@pytest.mark.parametrize("backend", ["npugraph_ex", "npugraphs"])
def test_one_capture_a_shape(captured, backend):
    f = torch.compile(lambda x, y: torch.sin(x @ y) + 1, backend=backend, dynamic=True)
    for rows in (3, 5, 3, 5, 3):
        x, y = randn(rows, 4), randn(4, 6)
        torch.testing.assert_close(f(x, y), torch.sin(x @ y) + 1)
    assert [one.captures for one in captured] == [2]


def test_mode_reduce_overhead(captured):
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    f = torch.compile(lambda x: x * 2, backend=torchair.get_npu_backend(compiler_config=config))
    for _ in range(3):
        x = randn(4) + len(captured)
        assert torch.equal(f(x), x * 2)
    assert captured[0].captures == 1


def test_outputs_are_overwritten_unless_cloned():
    x, y = randn(4), randn(4) + 1
    f = compiled(lambda x: x * 2)
    first, second = f(x), f(y)
    assert first.data_ptr() == second.data_ptr() and torch.equal(first, y * 2)
    torch._dynamo.reset()
    f = compiled(lambda x: x * 2, {"clone_output": True})
    first, second = f(x), f(y)
    assert torch.equal(first, x * 2) and torch.equal(second, y * 2)


def test_without_clones_the_first_inputs_take_the_data(captured):
    f = compiled(lambda x: x * 2, {"clone_input": False})
    x, y = randn(4), randn(4) + 1
    f(x)
    assert torch.equal(f(y), y * 2)
    assert torch.equal(x, y)
    assert captured[0].captures == 1


def test_written_inputs_keep_their_memory(captured):
    def f(cache, x):
        cache.add_(x)
        return cache * 2

    g = compiled(f)
    cache, other = torch.zeros(4, device="npu"), torch.zeros(4, device="npu")
    for step in range(1, 4):
        result = g(cache, torch.ones(4, device="npu"))
        assert cache.tolist() == [step] * 4 and result.tolist() == [2 * step] * 4
    assert captured[0].captures == 1
    g(other, torch.ones(4, device="npu"))  # another address is another capture
    assert other.tolist() == [1] * 4 and cache.tolist() == [3] * 4
    assert captured[0].captures == 2


def test_views_of_inputs_stay_views():
    f = compiled(lambda x: (x.view(-1)[2:], x + 1))
    f(randn(2, 3))
    x = randn(2, 3) * 2
    view, _ = f(x)
    view.fill_(7)
    assert (x.view(-1)[2:] == 7).all()


def test_capture_limit(captured):
    f = compiled(lambda x: x * 2, {"capture_limit": 2}, dynamic=True)
    for rows in (2, 3, 4, 5, 2):
        x = randn(rows)
        assert torch.equal(f(x), x * 2)
    assert captured[0].captures == 2 and captured[0].entries == {}


def test_captures_at_other_addresses_do_not_count_for_the_limit(captured):
    def f(cache, x):
        cache.add_(x)
        return cache * 2

    g = compiled(f, {"capture_limit": 2})
    caches = [torch.zeros(4, device="npu") for _ in range(4)]
    for cache in caches:
        g(cache, torch.ones(4, device="npu"))
        assert cache.tolist() == [1] * 4
    assert captured[0].captures == 4 and len(captured[0].entries) == 1


def logged(caplog, call):
    caplog.clear()
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        call()
    finally:
        logger.setLevel(level)
        logger.removeHandler(caplog.handler)
    return caplog.text


def test_the_log_says_what_is_captured_and_why(caplog):
    def f(cache, x):
        cache.add_(x)
        return cache * 2

    g = compiled(f)
    cache, other, x = torch.zeros(4, device="npu"), torch.zeros(4, device="npu"), randn(4)
    first = logged(caplog, lambda: g(cache, x))
    assert "No find captured AclGraph" in first
    assert "After capturing fx_graph" in first and "'activate_num': " in first
    assert "no needs to be recaptured" in logged(caplog, lambda: g(cache, x))
    assert "AclGraph needs to be recaptured" in logged(caplog, lambda: g(other, x))


def test_core_limits_of_the_stream_belong_to_a_capture(captured):
    f = compiled(lambda x: x * 2)
    stream, x = torch.npu.Stream(), randn(4)
    with torch.npu.stream(stream):
        f(x)
        torch.npu.set_stream_limit(stream, 2, 3)
        try:
            f(x)
            f(x)
        finally:
            torch.npu.reset_stream_limit(stream)
    assert captured[0].captures == 2 and len(captured[0].entries) == 1


def test_force_recapture(captured):
    f = compiled(lambda x: x * 2, {"force_recapture": True})
    for _ in range(3):
        f(randn(4))
    assert captured[0].captures == 3


def test_force_eager(captured):
    x = randn(4)
    assert torch.equal(compiled(lambda x: x * 2, {"force_eager": True})(x), x * 2)
    assert captured == []


def test_pools(captured):
    pool = torch.npu.graph_pool_handle()
    compiled(lambda x: x * 2, {"use_graph_pool": pool})(randn(4))
    assert captured[-1].pool == pool
    torch._dynamo.reset()
    f = compiled(lambda x: x * 2, {"reuse_graph_pool_in_same_fx": False}, dynamic=True)
    f(randn(4)), f(randn(5))
    first, second = (entry.graph.pool() for entry in captured[-1].entries.values())
    assert first != second
    torch._dynamo.reset()
    f = compiled(lambda x: x * 2, dynamic=True)
    f(randn(4)), f(randn(5))
    first, second = (entry.graph.pool() for entry in captured[-1].entries.values())
    assert first == second


def test_parameters_are_not_copied(captured):
    model = torch.nn.Linear(4, 4).npu()
    with torch.no_grad():
        f = compiled(model)
        x = randn(2, 4)
        f(x)
        model.weight.mul_(2)
        torch.testing.assert_close(f(x), model(x))
    assert captured[0].inputs.parameters and captured[0].captures == 1


def test_lengths_of_attention_are_updated(captured):
    """The lengths are integers that no shape depends on: one capture serves all of them."""
    q, k = randn(2, 4, 1, 16, dtype=torch.float16), randn(2, 4, 32, 16, dtype=torch.float16)

    def f(q, k, lengths):
        return torch_npu.npu_fused_infer_attention_score(
            q, k, k, actual_seq_lengths_kv=lengths, num_heads=4, input_layout="BNSD", scale=0.25
        )[0]

    g = compiled(f, dynamic=True)
    for lengths in ([20, 30], [7, 13], [32, 9]):
        torch.testing.assert_close(g(q, k, lengths), f(q, k, lengths))
    assert [one.captures for one in captured] == [1]


def test_random_numbers_differ_in_each_replay():
    """They follow the device's seed, as eager's do."""
    f = compiled(lambda x: torch.rand_like(x), {"clone_output": True})
    x = randn(16)
    f(x)
    torch.npu.manual_seed(3)
    first = [f(x), f(x)]
    torch.npu.manual_seed(3)
    again = [f(x), f(x)]
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


def test_capture_prints_nothing(capsys):
    def f(x):
        torchair.ops.npu_print(x)
        return x + 1

    g = compiled(f)
    g(torch.ones(2, device="npu"))
    g(torch.zeros(2, device="npu"))
    assert capsys.readouterr().out == "[1 1]\n[0 0]\n"


def test_training_is_not_captured(captured):
    x = randn(4, requires_grad=True)
    compiled(lambda x: (x * 2).square())(x).sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach())
    assert captured == []


def test_host_results_are_not_captured(captured):
    x = randn(4)
    assert torch.equal(compiled(lambda x: (x * 2).cpu())(x), (x * 2).cpu())
    assert captured == []


def test_inside_a_graph_of_the_users():
    f = compiled(lambda x: torch.sin(x) * 2)
    x = randn(8)
    f(x)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = f(x)
    x.copy_(randn(8) + 3)
    graph.replay()
    torch.testing.assert_close(y, torch.sin(x) * 2)


def test_compile_fx():
    from torch._functorch.aot_autograd import aot_module_simplified

    npugraph_ex = torch.npu.npugraph_ex

    def backend(gm, example_inputs):
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=lambda graph, inputs: npugraph_ex.compile_fx(
                graph, inputs, {"clone_input": False}
            ),
        )

    x = randn(2, 2)
    assert torch.equal(torch.compile(lambda x: x + x, backend=backend)(x), x + x)


def test_cat_stays_an_operator(uncompiled):
    x = randn(4)
    for remove in (True, False):
        torch._dynamo.reset()
        f = compiled(lambda x: torch.cat([x * 2, x + 1]), {"remove_cat_ops": remove})
        assert torch.equal(f(x), torch.cat([x * 2, x + 1]))
        targets = [str(node.target) for node in uncompiled[-1].graph.nodes]
        assert ("aten.cat.default" in targets) == remove


def test_namespace():
    assert {"compile_fx", "register_replacement", "inference", "scope"} <= set(
        torch.npu.npugraph_ex.__all__
    )
    assert torch.npu.npugraph_ex.scope.limit_core_num is torchair.scope.limit_core_num
    assert torch.npu.npugraph_ex.inference.readable_cache is torchair.inference.readable_cache
    cached = torch.npu.npugraph_ex.inference.cache_compile(randn, options={"clone_output": True})
    assert "_aclgraphcache_" in str(cached.path)
    with pytest.raises(ValueError, match="unknown option 'no', the options are"):
        torch.npu.npugraph_ex.inference.cache_compile(randn, options={"no": 1})


def test_tensors_are_saved_in_every_replay(tmp_path):
    """torch.npu.save_npugraph_tensor in a captured graph: one file a run, none while it is captured."""
    to = str(tmp_path / "y.pt")

    def f(x):
        y = x * 2
        torch.npu.save_npugraph_tensor(y, save_path=to)
        return y + 1

    compiled = torch.compile(f, backend="npugraph_ex", fullgraph=True)
    for value in (1.0, 2.0, 3.0):
        compiled(torch.full((2,), value, device="npu"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"y_device_0_{i}.pt" for i in range(3)]
    saved = [torch.load(tmp_path / f"y_device_0_{i}.pt")[0].item() for i in range(3)]
    assert saved == [2.0, 4.0, 6.0]


def test_passes_know_marks_as_operators_of_npugraph_ex(captured):
    """A range that a pass writes puts operators on a stream of their own."""
    marks = torch.ops.npugraph_ex

    def on_another_stream(gm, example_inputs, config):
        (node,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.abs.default)
        with gm.graph.inserting_before(node):
            gm.graph.call_function(
                marks.scope_enter.default, (["_user_stream_label"], ["of_a_pass"])
            )
        with gm.graph.inserting_after(node):
            record = gm.graph.call_function(marks.record.default)
        with gm.graph.inserting_after(record):
            leave = gm.graph.call_function(marks.scope_exit.default)
        with gm.graph.inserting_after(leave):
            gm.graph.call_function(marks.wait.default, ([record],))

    f = compiled(lambda x: x.abs() + 1, {"post_grad_custom_pre_pass": on_another_stream})
    x = randn(4)
    with torch.no_grad():
        torch.testing.assert_close(f(x), x.abs() + 1)
    assert ("of_a_pass", 0) in torchair.ops._tagged._streams
