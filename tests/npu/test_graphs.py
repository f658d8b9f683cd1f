"""NPUGraph: capture and replay, memory, random numbers, training."""

import gc
import json
import threading

import pytest
import torch

import torch_npu


def captured(function, *args, **options):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        result = function(*args)
    return graph, result


def test_a_capture_computes_nothing_and_a_replay_does():
    x = torch.zeros(4, device="npu")
    graph, _ = captured(lambda: x.add_(1))
    assert x.tolist() == [0] * 4
    for count in (1, 2, 3):
        graph.replay()
        assert x.tolist() == [count] * 4


def test_replay_reads_and_writes_the_same_addresses():
    x = torch.randn(8, 16, device="npu")
    weight = torch.randn(16, 5, device="npu")
    graph, y = captured(lambda: torch.relu(x @ weight).sum(1))
    address = y.data_ptr()
    for _ in range(3):
        x.copy_(torch.randn(8, 16))
        graph.replay()
        assert y.data_ptr() == address
        expected = torch.relu(x.cpu().double() @ weight.cpu().double()).sum(1)
        torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_replay_equals_eager_bit_by_bit(dtype):
    torch.manual_seed(0)
    layer = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
    ).to("npu", dtype)
    x = torch.randn(3, 7, 32).to("npu", dtype)
    with torch.no_grad():
        graph, y = captured(lambda: torch.softmax(layer(x), -1))
        for _ in range(3):
            x.copy_(torch.randn(3, 7, 32).to(dtype))
            graph.replay()
            assert torch.equal(y, torch.softmax(layer(x), -1))


def test_views_and_in_place_writes_into_them():
    x = torch.zeros(4, 6, device="npu")

    def work():
        x[1:3, ::2].add_(1)
        x.t()[0].mul_(2)
        return x.view(-1)[3:9].clone()

    graph, y = captured(work)
    reference = torch.zeros(4, 6)
    for _ in range(2):
        graph.replay()
        reference[1:3, ::2].add_(1)
        reference.t()[0].mul_(2)
        assert torch.equal(x.cpu(), reference)
        assert torch.equal(y.cpu(), reference.view(-1)[3:9])


def test_out_forms_that_resize():
    x = torch.randn(5, device="npu")
    out = torch.empty(0, device="npu")
    graph, _ = captured(lambda: torch.abs(x, out=out))
    for _ in range(3):
        x.copy_(torch.randn(5))
        graph.replay()
        assert torch.equal(out.cpu(), x.cpu().abs())


def test_memory_freed_in_the_capture_is_reused_there_and_stays_the_graphs():
    x = torch.ones(1 << 20, device="npu")

    def chain():
        y = x
        for _ in range(8):
            y = y + 1
        return y

    torch.npu.empty_cache()
    before = torch.npu.memory_reserved()
    graph, y = captured(chain)
    assert torch.npu.memory_reserved() - before <= 3 * (20 << 20)
    del_address = y.data_ptr()
    del y
    noise = [torch.full((1 << 20,), 7.0, device="npu") for _ in range(6)]
    assert all(n.data_ptr() != del_address for n in noise)
    graph.replay()
    assert all(bool((n == 7).all()) for n in noise)


def test_graphs_share_a_pool():
    pool = torch.npu.graph_pool_handle()
    x = torch.arange(4.0, device="npu")
    first, a = captured(lambda: x + 1, pool=pool)
    second, b = captured(lambda: a * 2, pool=pool)
    assert first.pool() == second.pool() == pool
    x.fill_(3)
    first.replay()
    second.replay()
    assert b.tolist() == [8.0] * 4
    third, _ = captured(lambda: x - 1, pool=first.pool())
    assert third.pool() == pool


def test_a_graph_that_is_reset_gives_its_memory_back():
    gc.collect()
    torch.npu.empty_cache()
    before = torch.npu.memory_reserved()
    graph, y = captured(lambda: torch.zeros(1 << 22, device="npu"))
    del y
    assert torch.npu.memory_reserved() > before
    graph.reset()
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == before
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_a_thousand_graphs_leak_nothing():
    x = torch.ones(16, device="npu")
    captured(lambda: x * 2)
    gc.collect()
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated(), torch.npu.memory_reserved()
    for _ in range(1000):
        graph = torch.npu.NPUGraph()
        stream = torch.npu.graph.default_capture_stream
        with torch.npu.stream(stream):
            graph.capture_begin()
            y = x * 2 + 1
            graph.capture_end()
        del y, graph
    torch.npu.empty_cache()
    assert (torch.npu.memory_allocated(), torch.npu.memory_reserved()) == before


def test_random_operators_take_new_numbers_in_every_replay():
    torch.npu.manual_seed(5)
    graph, y = captured(lambda: torch.rand(64, device="npu"))
    offset = torch.npu.default_generators[0].get_offset()
    assert offset == 0, "a capture draws no numbers"
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn.append(y.clone())
    torch.npu.manual_seed(5)
    for value in drawn:
        assert torch.equal(value, torch.rand(64, device="npu"))
    assert not torch.equal(drawn[0], drawn[1])


def test_the_state_of_the_generator_inside_a_capture():
    torch.npu.manual_seed(9)
    before = torch.rand(4, device="npu")
    expected = torch.rand(4, device="npu"), torch.rand(4, device="npu")
    torch.npu.manual_seed(9)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        state = torch.npu.get_rng_state()
        first = torch.rand(4, device="npu")
        torch.npu.set_rng_state(state)
        second = torch.rand(4, device="npu")
        with pytest.raises(RuntimeError, match="only if new seed is the same"):
            torch.npu.manual_seed(10)
    assert torch.equal(torch.rand(4, device="npu"), before)
    graph.replay()
    assert torch.equal(first, expected[0]) and torch.equal(second, expected[0])
    assert torch.equal(torch.rand(4, device="npu"), expected[1])


def test_dropout_and_a_generator_of_ones_own():
    generator = torch.Generator("npu").manual_seed(3)
    x = torch.ones(256, device="npu")

    def work():
        return torch.nn.functional.dropout(x, 0.5), torch.empty_like(x).normal_(generator=generator)

    graph, (dropped, normal) = captured(work)
    graph.register_generator_state(generator)
    graph.replay()
    first = dropped.clone(), normal.clone()
    graph.replay()
    assert not torch.equal(first[0], dropped) and not torch.equal(first[1], normal)
    again = torch.empty_like(x).normal_(generator=torch.Generator("npu").manual_seed(3))
    assert torch.equal(first[1], again)
    with pytest.raises(TypeError, match="NPU generator"):
        graph.register_generator_state(torch.Generator())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_whole_training_step_is_replayed(optimizer):
    def build():
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).npu()
        extra = {"capturable": True} if optimizer is torch.optim.AdamW else {"momentum": 0.9}
        return model, optimizer(model.parameters(), lr=0.05, **extra)

    batches = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(6)]
    x, target = torch.zeros(4, 8, device="npu"), torch.zeros(4, 1, device="npu")

    def step(model, optim):
        optim.zero_grad(set_to_none=False)
        torch.nn.functional.mse_loss(model(x), target).backward()
        optim.step()

    def load(batch):
        x.copy_(batch[0])
        target.copy_(batch[1])

    reference, eager_optim = build()
    for batch in [batches[0], *batches[1:]]:
        load(batch)
        step(reference, eager_optim)

    model, optim = build()
    load(batches[0])
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        step(model, optim)
    graph, _ = captured(step, model, optim)
    for batch in batches[1:]:
        load(batch)
        graph.replay()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_batch_norm_statistics_are_put_back_after_the_capture():
    norm = torch.nn.BatchNorm1d(3).npu()
    x = torch.randn(5, 3).npu()
    graph, _ = captured(lambda: norm(x))
    assert norm.running_mean.tolist() == [0, 0, 0] and int(norm.num_batches_tracked) == 0
    graph.replay()
    torch.testing.assert_close(norm.running_mean.cpu(), x.cpu().mean(0) * 0.1)
    assert int(norm.num_batches_tracked) == 1


def test_host_memory_is_read_and_written_at_replay():
    host = torch.arange(4.0).pin_memory()
    back = torch.zeros(4).pin_memory()
    x = torch.empty(4, device="npu")

    def work():
        x.copy_(host, non_blocking=True)
        x.mul_(10)
        back.copy_(x, non_blocking=True)

    graph, _ = captured(work)
    assert back.tolist() == [0] * 4
    host.add_(1)
    graph.replay()
    torch.npu.synchronize()
    assert back.tolist() == [10.0, 20.0, 30.0, 40.0]


def test_a_host_number_is_passed_by_value():
    x = torch.ones(3, device="npu")
    factor = torch.tensor(4.0)
    graph, y = captured(lambda: x * factor)
    factor.fill_(100)
    graph.replay()
    assert y.tolist() == [4.0] * 3


def test_make_graphed_callables_trains_like_eager():
    def build():
        torch.manual_seed(2)
        return torch.nn.Linear(6, 6).npu(), torch.nn.Linear(6, 2).npu()

    x = torch.randn(3, 6).npu()
    first, second = build()
    h = torch.randn(3, 6, device="npu", requires_grad=True)
    graphed = torch.npu.make_graphed_callables((first, second), ((x,), (h,)))
    plain = build()
    for _ in range(2):
        data = torch.randn(3, 6).npu()
        out = graphed[1](torch.relu(graphed[0](data)))
        expected = plain[1](torch.relu(plain[0](data)))
        assert torch.equal(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
    for mine, theirs in zip((first, second), plain, strict=True):
        assert torch.equal(mine.weight.grad, theirs.weight.grad)
    first.eval()
    assert torch.equal(first(x), plain[0](x))


def test_make_graphed_callables_refuses():
    module = torch.nn.Linear(2, 2).npu()
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="hooks"):
        torch.npu.make_graphed_callables(module, (torch.ones(1, 2, device="npu"),))
    with pytest.raises(RuntimeError, match="only Tensors"):
        torch.npu.make_graphed_callables(lambda x: x, (3,))


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="since torch 2.12")
def test_torch_accelerator_graph():
    x = torch.zeros(3, device="npu")
    graph = torch.accelerator.Graph()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        graph.capture_begin()
        x.add_(2)
        graph.capture_end()
    graph.replay()
    graph.replay()
    assert x.tolist() == [4.0] * 3


def test_debug_dump_lists_the_steps(tmp_path):
    x = torch.ones(2, 2, device="npu")
    graph, _ = captured(lambda: torch.relu(x) @ x)
    graph.debug_dump(str(tmp_path / "graph.json"))
    steps = json.loads((tmp_path / "graph.json").read_text())["steps"]
    assert [s["name"] for s in steps] == ["aten::relu", "aten::mm"]
    timeline = json.loads((tmp_path / "graph.aligned.json").read_text())
    assert [event["ts"] for event in timeline] == [0, 1]
    with pytest.raises(RuntimeError, match="capture a graph first"):
        torch.npu.NPUGraph().debug_dump(str(tmp_path / "none.json"))


def test_fused_operators_replay_without_python():
    torch.manual_seed(0)
    x = torch.randn(4, 32).npu()
    gamma = torch.rand(32).npu()
    graph, (y, rstd) = captured(lambda: torch_npu.npu_rms_norm(x, gamma))
    kernels = [k for step in graph._graph.steps() for k in step["kernels"]]
    assert kernels and "python" not in kernels
    for _ in range(2):
        x.copy_(torch.randn(4, 32))
        graph.replay()
        expected = torch_npu.npu_rms_norm(x, gamma)
        assert torch.equal(y, expected[0]) and torch.equal(rstd, expected[1])


def test_a_kernel_that_reads_its_data_is_called_again():
    x = torch.randn(6, 4).npu()
    weight = [torch.randn(4, 3).npu(), torch.randn(4, 3).npu()]
    groups = torch.tensor([2, 6]).npu()

    def work():
        return torch_npu.npu_grouped_matmul(
            [x], weight, group_list=groups, split_item=3, group_type=0, group_list_type=0
        )[0]

    graph, y = captured(work)
    for split in ([1, 6], [5, 6], [3, 6]):
        groups.copy_(torch.tensor(split))
        x.copy_(torch.randn(6, 4))
        graph.replay()
        k = split[0]
        expected = torch.cat([x[:k] @ weight[0], x[k:] @ weight[1]])
        torch.testing.assert_close(y, expected)


def test_replay_from_several_threads_and_streams():
    graphs = []
    for i in range(4):
        x = torch.full((64,), float(i), device="npu")
        graphs.append((x, *captured(lambda x=x: torch.sqrt(x * x + 1))))

    torch.npu.synchronize()

    def run(x, graph):
        with torch.npu.stream(torch.npu.Stream()):
            for _ in range(50):
                graph.replay()
            torch.npu.current_stream().synchronize()

    threads = [threading.Thread(target=run, args=(x, g)) for x, g, _ in graphs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, (_, _, y) in enumerate(graphs):
        torch.testing.assert_close(y.cpu(), torch.full((64,), (i * i + 1) ** 0.5))


def test_capture_on_another_device():
    if torch.npu.device_count() < 2:
        pytest.skip("needs two devices")
    with torch.npu.device(1):
        x = torch.ones(3, device="npu:1")
        graph, y = captured(lambda: x + 1)
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [6.0] * 3 and y.device.index == 1


def test_is_current_stream_capturing():
    assert not torch.npu.is_current_stream_capturing()
    graph, inside = captured(torch.npu.is_current_stream_capturing)
    assert inside and not torch.npu.is_current_stream_capturing()


def test_a_decoder_replayed_a_hundred_times_equals_eager():
    from benchmarks.models import decoder

    eager, graphed = decoder(), decoder()
    token, position = torch.tensor([3]).npu(), torch.tensor([0]).npu()
    graphed(token, position)
    graphed.reset()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        logits = graphed(token, position)
    kernels = {k for step in graph._graph.steps() for k in step["kernels"]}
    assert "python" not in kernels
    for at in range(100):
        position.fill_(at)
        graph.replay()
        expected = eager(token, position)
        assert torch.equal(logits, expected)
        token.copy_(expected.argmax().reshape(1))


def test_a_python_kernel_draws_at_its_place_in_the_graph():
    from softnpu import _C

    def kernel(x):
        generator = _C.kernel_generator()
        x.tolist()  # so that replay calls it again
        return torch.rand(4, generator=generator)

    def work(x):
        return (
            torch.rand(4, device="npu"),
            _C.run_kernel("draw", kernel, (x,), {}),
            torch.rand(4, device="npu"),
        )

    x = torch.ones(1, device="npu")
    graph, drawn = captured(work, x)
    assert [step["kernels"] for step in graph._graph.steps()][1] == ["python"]
    torch.npu.manual_seed(4)
    graph.replay()
    torch.npu.manual_seed(4)
    for mine, theirs in zip(drawn, work(x), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.npu.default_generators[0].get_offset() == 30


@pytest.mark.parametrize("name", ["npu_fusion_attention", "npu_fusion_attention_v3"])
def test_dropout_of_attention_in_a_graph_fits_its_backward(name):
    attention = getattr(torch_npu, name)
    inputs = [torch.randn(1, 32, 64).to("npu", torch.float16).requires_grad_() for _ in range(3)]

    def step():
        result = attention(*inputs, 4, "BSH", scale=0.2, keep_prob=0.6)[0]
        return result, torch.autograd.grad(result.float().sum(), inputs)

    step()
    torch.npu.manual_seed(8)
    graph, (result, grads) = captured(step)
    torch.npu.manual_seed(8)
    graph.replay()
    first = result.clone()
    torch.npu.manual_seed(8)
    expected, expected_grads = step()
    assert torch.equal(result, expected)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected_grads, strict=True))
    graph.replay()
    assert torch.equal(first, result) == (name == "npu_fusion_attention")


def test_tasks_of_a_side_stream_replay_on_it():
    from softnpu import _C

    side, graph, x = torch.npu.Stream(), torch.npu.NPUGraph(), torch.randn(16, device="npu")
    with torch.npu.graph(graph):
        y = x.exp()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            z = y.sin()
        torch.npu.current_stream().wait_stream(side)
        out = z * 2
    _C.trace_start(False, 1000)
    graph.replay()
    _C.trace_stop()
    streams = {name: stream for name, _, _, stream, *_ in _C.trace_take()}
    torch.testing.assert_close(out, x.exp().sin() * 2)
    here = torch.npu.current_stream().stream_id
    found = (streams["aten::exp"], streams["aten::sin"], streams["aten::mul"])
    assert found == (here, side.stream_id, here)


def test_the_graph_that_a_stream_is_captured_into():
    here = torch.npu.NPUGraph.get_currently_capturing_graph
    graph, other = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph):
        assert here() is graph
        other.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(other):
            assert here() is graph
        torch.npu.current_stream().wait_stream(other)
    with pytest.raises(RuntimeError, match="stream is not being captured"):
        here()


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="since torch 2.12")
def test_a_graph_of_torch_accelerator_is_no_npu_graph():
    x = torch.ones(2, device="npu")
    with torch.Stream("npu"), torch.accelerator.Graph():
        x.add_(1)
        with pytest.raises(RuntimeError, match=r"during a torch\.accelerator\.Graph capture"):
            torch.npu.NPUGraph.get_currently_capturing_graph()
