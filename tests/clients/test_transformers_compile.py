"""transformers compiled: its Trainer by torch_compile, a model by TorchAir, decoding with a static cache."""

from __future__ import annotations

import pytest
import torch
from transformers import StaticCache

import torchair
from tests.clients import tiny


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def backend(**options: object):
    config = torchair.CompilerConfig()
    for name, value in options.items():
        setattr(config, name, value)
    return torchair.get_npu_backend(compiler_config=config)


def test_trainer_with_torch_compile_as_on_the_cpu(tmp_path):
    before = dict(torch._dynamo.utils.counters["stats"])
    npu = tiny.losses(tiny.llama(), tiny.Counting(), tmp_path, "npu", torch_compile=True)
    assert dict(torch._dynamo.utils.counters["stats"]) != before, "a graph was made"
    cpu = tiny.losses(tiny.llama(), tiny.Counting(), tmp_path, "cpu")
    torch.testing.assert_close(torch.tensor(npu), torch.tensor(cpu), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make,data", [(tiny.llama, tiny.Counting), (tiny.bert, tiny.Halves)])
def test_loss_and_gradients_by_torchair(make, data):
    batch = [data()[i] for i in range(4)]
    inputs = {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
    on_cpu, on_npu = make(), make().to("npu")
    expected = on_cpu(**inputs).loss
    compiled = torch.compile(on_npu, backend=backend(), dynamic=False)
    found = compiled(**{name: value.npu() for name, value in inputs.items()}).loss
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    found.backward()
    for a, b in zip(on_npu.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_decoding_with_a_static_cache_by_torchair(mode):
    """The prompt eagerly, then each token by one graph, which writes into the cache."""
    words, steps = tiny.Counting().words[:2, :8], 6
    expected = tiny.llama().eval().generate(words, max_new_tokens=steps, do_sample=False)
    model = tiny.llama().to("npu").eval()
    cache = StaticCache(config=model.config, max_cache_len=8 + steps)
    step = torch.compile(model, backend=backend(mode=mode), dynamic=False, fullgraph=True)
    said = words.npu()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        logits = model(input_ids=said, past_key_values=cache, use_cache=True).logits
        for place in range(8, 8 + steps):
            word = logits[:, -1:].argmax(-1)
            said = torch.cat([said, word], 1)
            where = torch.full((2, 1), place, device="npu")
            logits = step(
                input_ids=word, position_ids=where, past_key_values=cache, use_cache=True
            ).logits
    assert torch.equal(said.cpu(), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs == 1
