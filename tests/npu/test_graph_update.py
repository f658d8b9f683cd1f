"""New arguments for captured operators: task groups, external events, NPUGraph.update, and looking inside."""

import pytest
import torch

import torch_npu

HEADS, DIM = 4, 16


def attention_inputs(length=32):
    torch.manual_seed(0)
    query = torch.randn(1, HEADS, 1, DIM).to("npu", torch.float16)
    keys, values = (torch.randn(1, HEADS, length, DIM).to("npu", torch.float16) for _ in range(2))
    return query, keys, values


def attend(query, keys, values, lengths, **out):
    function = torch_npu.npu_fused_infer_attention_score
    function = function.out if out else function
    return function(
        query,
        keys,
        values,
        num_heads=HEADS,
        input_layout="BNSD",
        scale=0.25,
        actual_seq_lengths_kv=lengths,
        **out,
    )


def group(stream, work):
    torch.npu.graph_task_group_begin(stream)
    result = work()
    return torch.npu.graph_task_group_end(stream), result


def capture_attention(event=None):
    tensors = attention_inputs()
    graph = torch.npu.NPUGraph()
    out = [
        torch.empty(1, HEADS, 1, DIM, dtype=torch.float16, device="npu"),
        torch.empty(0, device="npu"),
    ]
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        if event is not None:
            event.wait(stream)
            event.reset(stream)
        handle, _ = group(stream, lambda: attend(*tensors, [8], workspace=None, out=out))
        doubled = out[0] * 2
    return graph, handle, tensors, out, doubled


def update(handle, tensors, out, lengths, event=None):
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, handle)
        attend(*tensors, lengths, workspace=None, out=out)
        torch.npu.graph_task_update_end(stream)
        if event is not None:
            event.record(stream)


def test_update_then_replay():
    event = torch.npu.ExternalEvent()
    graph, handle, tensors, out, doubled = capture_attention(event)
    for lengths in ([8], [32], [3]):
        out[0].zero_()
        update(handle, tensors, out, lengths, event)
        assert not out[0].any(), "an update computes nothing"
        graph.replay()
        expected = attend(*tensors, lengths)[0]
        assert torch.equal(out[0], expected) and torch.equal(doubled, expected * 2)


def test_replay_then_update_then_record():
    event = torch.npu.ExternalEvent()
    graph, handle, tensors, out, doubled = capture_attention(event)
    side = torch.npu.Stream()
    for lengths in ([5], [31]):
        out[0].zero_()
        with torch.npu.stream(side):
            graph.replay()
        assert not side.query() and not out[0].any()
        update(handle, tensors, out, lengths, event)
        side.synchronize()
        expected = attend(*tensors, lengths)[0]
        assert torch.equal(out[0], expected) and torch.equal(doubled, expected * 2)


def test_without_an_update_the_captured_arguments_count():
    graph, _, tensors, out, _ = capture_attention()
    graph.replay()
    assert torch.equal(out[0], attend(*tensors, [8])[0])


def test_any_operator_and_its_returned_results():
    a, b, c = (torch.randn(4, 4).npu() for _ in range(3))
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        handle, (product, total) = group(stream, lambda: (a @ b, torch.add(a, b, alpha=2)))
        last = product + total
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        torch.npu.graph_task_update_begin(side, handle)
        shadow = a @ c
        torch.add(a, c, alpha=-1)
        torch.npu.graph_task_update_end(side)
    assert shadow.shape == product.shape
    graph.replay()
    expected = a @ c, a - c
    assert torch.equal(product, expected[0]) and torch.equal(total, expected[1])
    assert torch.equal(last, expected[0] + expected[1])


@pytest.mark.npu_races("looks at the values of a replay that is under way")
def test_a_branch_that_waits_holds_up_nothing_else():
    gate = torch.npu.ExternalEvent()
    side = torch.npu.Stream()
    if side == torch.npu.graph.default_capture_stream:
        side = torch.npu.Stream()
    x, y = torch.zeros(2, device="npu"), torch.zeros(2, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        here = torch.npu.current_stream()
        side.wait_stream(here)
        with torch.npu.stream(side):
            gate.wait(side)
            gate.reset(side)
            x.add_(1)
        y.add_(1)
        here.wait_stream(side)
        y.mul_(10)
    runner = torch.npu.Stream()
    runner.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(runner):
        graph.replay()
        y.add_(5)
    assert x.tolist() == [0, 0] and y.tolist() == [1, 1]
    gate.record()
    assert x.tolist() == [1, 1] and y.tolist() == [15, 15]


def test_a_graph_records_an_external_event():
    gate = torch.npu.ExternalEvent()
    x = torch.zeros(1, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.add_(1)
        gate.record(torch.npu.current_stream())
    other = torch.npu.Stream()
    gate.wait(other)
    with torch.npu.stream(other):
        x.mul_(7)
    assert not other.query()
    graph.replay()
    assert other.query() and x.item() == 7


def test_a_queued_replay_survives_its_graph():
    gate = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    x = torch.ones(3, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 2
        x.copy_(y + y)
    with torch.npu.stream(stream):
        gate.wait()
        graph.replay()
    graph.reset()
    del graph, y
    gate.record()
    stream.synchronize()
    assert x.tolist() == [4.0] * 3


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_groups_need_a_capture_and_an_end():
    stream = torch.npu.Stream()
    with pytest.raises(RuntimeError, match="107029"):
        torch.npu.graph_task_group_begin(stream)
    with pytest.raises(RuntimeError, match="107029"):
        torch.npu.graph_task_group_end(stream)
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(stream):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="107033"):
            torch.npu.graph_task_group_end(stream)
        torch.npu.graph_task_group_begin(stream)
        with pytest.raises(RuntimeError, match="107033"):
            torch.npu.graph_task_group_begin(stream)
        with pytest.raises(RuntimeError, match="(?s)107033.*graph_task_group_end"):
            graph.capture_end()
    with pytest.raises(TypeError, match="stream must be"):
        torch.npu.graph_task_group_begin(3)


def test_updates_need_a_handle_and_the_groups_operators():
    graph, handle, tensors, out, _ = capture_attention()
    stream = torch.npu.Stream()
    with pytest.raises(TypeError, match="graph_task_group_end returned"):
        torch.npu.graph_task_update_begin(stream, 5)
    with pytest.raises(RuntimeError, match="107033"):
        torch.npu.graph_task_update_end(stream)
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, handle)
        with pytest.raises(
            RuntimeError, match=r"(?s)107034.*npu_fused_infer_attention_score.out.*aten::add"
        ):
            tensors[0] + 1
        with pytest.raises(RuntimeError, match="107033"):
            torch.npu.graph_task_update_begin(stream, handle)
        with pytest.raises(RuntimeError, match=r"(?s)107033.*1 operator.*0 were updated"):
            torch.npu.graph_task_update_end(stream)
    assert (tensors[0] + 1).shape == tensors[0].shape
    graph.replay()
    assert torch.equal(out[0], attend(*tensors, [8])[0])


def test_an_update_of_another_shape_is_named_at_replay():
    a, b = torch.ones(2, 2, device="npu"), torch.ones(2, 3, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        handle, _ = group(stream, lambda: a @ a)
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        torch.npu.graph_task_update_begin(side, handle)
        a @ b
        torch.npu.graph_task_update_end(side)
    with pytest.raises(RuntimeError, match=r"aten::mm: .*\[2, 3\].*captured with \[2, 2\]"):
        graph.replay()


# --- NPUGraph.update ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["out", "default"])
def test_auto_dispatch_capture(form):
    tensors = attention_inputs()
    out = [
        torch.empty(1, HEADS, 1, DIM, dtype=torch.float16, device="npu"),
        torch.empty(0, device="npu"),
    ]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        if form == "out":
            attend(*tensors, [8], workspace=None, out=out)
            result = out[0]
        else:
            result, _ = attend(*tensors, [8])
    for lengths in ([20], [1]):
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])
        graph.replay()
        assert torch.equal(result, attend(*tensors, lengths)[0])


def test_update_needs_its_capture_and_one_dict_each():
    tensors = attention_inputs()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        attend(*tensors, [8])
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        graph.update(cpu_update_input=[{}])
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        for _ in range(3):
            attend(*tensors, [8])
    with pytest.raises(RuntimeError, match="each of the 3 captured operators, but received 2"):
        graph.update(cpu_update_input=[{}, {}])
    with pytest.raises(TypeError, match="list of dicts"):
        graph.update(cpu_update_input={})


def test_a_handler_of_ones_own():
    @torch.npu.register_npu_graph_handler("add.Tensor")
    class AddHandler(torch.npu.NpuGraphOpHandler):
        UPDATE_SPECS = {"add.Tensor": [("kwarg", "alpha", "factor")]}

    try:
        a, b = torch.ones(2, device="npu"), torch.ones(2, device="npu")
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, auto_dispatch_capture=True):
            c = torch.add(a, b, alpha=2)
        graph.update(cpu_update_input=[{"factor": 9}])
        graph.replay()
        assert c.tolist() == [10.0, 10.0]
    finally:
        torch_npu.npu._graph_update._handlers.pop("add.Tensor")
    with pytest.raises(TypeError, match="subclass of NpuGraphOpHandler"):
        torch.npu.register_npu_graph_handler("mm")(int)


# --- looking inside -----------------------------------------------------------------------------------------------


def test_print_and_save_happen_in_every_replay(capfd, tmp_path):
    x = torch.ones(2, device="npu")
    path = tmp_path / "x.pt"
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x + 1
        torch.npu.print_npugraph_tensor(y, tensor_name="y")
        torch.npu.save_npugraph_tensor(y, save_path=str(path), overwrite=True)
        torch.npu.save_npugraph_tensor([x, y], save_path=str(tmp_path / "both.pt"))
    assert "y=" not in capfd.readouterr().out
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert (
            f"y=tensor([{value + 1:.0f}., {value + 1:.0f}.]), shape=(2,)" in capfd.readouterr().out
        )
        assert torch.load(tmp_path / "x_device_0.pt").tolist() == [value + 1] * 2
    both = torch.load(tmp_path / "both_device_0_0.pt")
    assert both[0].tolist() == [5.0, 5.0] and both[1].tolist() == [6.0, 6.0]
    with pytest.raises(ValueError, match="file name"):
        torch.npu.save_npugraph_tensor(x, save_path=str(tmp_path) + "/")


def test_super_kernel_scopes_and_options():
    torch.npu.super_kernel_scope_begin("a")
    torch.npu.super_kernel_scope_begin()
    torch.npu.super_kernel_scope_end()
    with pytest.raises(RuntimeError, match="'a', not 'b'"):
        torch.npu.super_kernel_scope_end("b")
    with pytest.raises(RuntimeError, match="no scope is open"):
        torch.npu.super_kernel_scope_end("a")
    with pytest.raises(RuntimeError, match="non-empty"):
        torch.npu.super_kernel_scope_begin("  ")
    graph = torch.npu.NPUGraph()
    graph.super_kernel_optimize({"split_mode": 1}, {"debug_sync_all": 0})
    with pytest.raises(RuntimeError, match="unknown key 'speed'"):
        graph.super_kernel_optimize({"speed": 1})
    with pytest.raises(RuntimeError, match="must be int, but received str"):
        graph.super_kernel_optimize({"split_mode": "1"})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ubuf_lock_ignore_kernel": ["a", 1]}, "must be a list of str, but received 1"),
        ({"dcci_after_kernel_end": [None]}, "must be a list of str, but received None"),
        ({"aggressive_opt_strategies": {"event_breaker_bypass": "1"}}, "event_breaker_bypass"),
        ({"aggressive_opt_strategies": {"other": 1}}, "but received 'other'"),
    ],
)
def test_parts_of_super_kernel_options(options, message):
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match=message):
        graph.super_kernel_optimize(options, None)


def test_tensors_are_printed_and_saved_by_torch_npu_too():
    assert torch_npu.print_npugraph_tensor is torch.npu.print_npugraph_tensor
    assert torch_npu.save_npugraph_tensor is torch.npu.save_npugraph_tensor
