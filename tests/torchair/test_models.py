"""Whole models: compiled, they give eager's results.

Each goes through the C++ compiler once, small; whole ones do so in the slow tests, and uncompiled in the others.
"""

from __future__ import annotations

import copy

import pytest
import torch

from tests.torchair.models import Llama, Mlp, Moe, ResNet18
from tests.torchair.support import randn


def train(model, forward, steps=3):
    """Losses and final weights of a few steps with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        x = randn(8, 32) * (1 + 0.1 * step)
        loss = (forward(x) - x.flip(-1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach() for p in model.parameters()]


def assert_trains_alike(counted):
    torch.manual_seed(0)
    plain = Mlp().npu()
    graph = copy.deepcopy(plain)
    expected = train(plain, plain)
    actual = train(graph, torch.compile(graph, backend="npu"))
    assert actual[0] == pytest.approx(expected[0], rel=1e-4)
    assert expected[0][-1] < expected[0][0]
    for mine, theirs in zip(actual[1], expected[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert sorted(counted) == ["backward", "forward"]


def test_training_step_compiled(counted):
    """The real thing: AOTAutograd, Inductor, C++."""
    assert_trains_alike(counted)


def assert_resnet_alike(counted):
    """Inference and one training step: results, gradients and running means are eager's."""
    torch.manual_seed(0)
    plain = ResNet18(width=8, classes=10).npu()
    graph = copy.deepcopy(plain)
    compiled = torch.compile(graph, backend="npu")
    x = randn(2, 3, 64, 64)
    expected, actual = plain(x), compiled(x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for mine, theirs in zip(graph.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    for mine, theirs in zip(graph.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)  # running means were updated
    plain.eval()
    graph.eval()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), plain(x), rtol=1e-4, atol=1e-4)
    assert sorted(counted) == ["backward", "forward", "forward"]  # training, and inference once


@pytest.mark.usefixtures("uncompiled")
def test_resnet18(counted):
    assert_resnet_alike(counted)


def test_residual_blocks_compiled(counted):
    """The stem and the first stage of ResNet-18, through the C++ compiler."""
    torch.manual_seed(0)
    model = ResNet18(width=8, classes=10, stages=1).npu().eval()
    compiled = torch.compile(model, backend="npu")
    with torch.no_grad():
        for factor in (1, 2):
            x = randn(2, 3, 32, 32) * factor
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert counted == ["forward"]


@pytest.mark.slow
def test_resnet18_compiled(counted):
    assert_resnet_alike(counted)


def generate(model, forward, prompt, steps):
    caches, tokens, outputs, start = model.caches(prompt.shape[0]), prompt, [], 0
    for _ in range(steps):
        logits = forward(tokens, caches, start)
        outputs.append(logits)
        start += tokens.shape[1]
        tokens = logits[:, -1:].argmax(-1)
    return outputs, caches


def assert_generates_alike(counted, batches=(2, 3, 5), steps=4):
    """Prefill and decode with one compiled function, for several sizes of batch."""
    torch.manual_seed(0)
    model = Llama().half().npu()
    with torch.no_grad():
        compiled = torch.compile(model, backend="npu", dynamic=True)
        for batch in batches:
            prompt = torch.arange(batch * 7, device="npu").view(batch, 7) % 50
            expected = generate(model, model, prompt, steps)
            actual = generate(model, compiled, prompt, steps)
            for mine, theirs in zip(actual[0], expected[0], strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
            for mine, theirs in zip(sum(actual[1], ()), sum(expected[1], ()), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
    assert len(counted) <= 3  # prefill, decode; the first call has start 0, which dynamo fixes


@pytest.mark.usefixtures("uncompiled")
def test_llama_prefill_and_decode(counted):
    assert_generates_alike(counted)


@pytest.mark.slow
def test_llama_prefill_and_decode_compiled(counted):
    assert_generates_alike(counted)


def test_llama_decode_compiled(counted):
    """Steps of one token over caches that grow, for two sizes of batch: one graph in C++."""
    torch.manual_seed(0)
    model = Llama(layers=1).half().npu()
    compiled = torch.compile(model, backend="npu", dynamic=True)
    with torch.no_grad():
        for batch in (2, 3):
            caches = [model.caches(batch) for _ in range(2)]
            prompt = torch.arange(batch * 7, device="npu").view(batch, 7) % 50
            for one in caches:
                token = model(prompt, one, 0)[:, -1:].argmax(-1)
            for start in (7, 8, 9):
                expected = model(token, caches[0], start)
                actual = compiled(token, caches[1], start)
                torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)
                token = expected.argmax(-1)
    assert counted == ["forward"]


def assert_experts_alike(counted, dtype, rows=(6, 11)):
    torch.manual_seed(0)
    model = Moe().to(dtype).npu()
    compiled = torch.compile(model, backend="npu", dynamic=True)
    with torch.no_grad():
        for count in rows:
            x = randn(count, 32, dtype=dtype)
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-3, atol=2e-3)
    assert counted == ["forward"]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_mixture_of_experts(counted, dtype):
    assert_experts_alike(counted, dtype)


def test_mixture_of_experts_compiled(counted):
    assert_experts_alike(counted, torch.float32)


@pytest.mark.slow
def test_mixture_of_experts_compiled_in_half_precision(counted):
    assert_experts_alike(counted, torch.float16)


def test_decoder_layer_compiled_in_bfloat16():
    """This package's operators in a graph that Inductor compiles, with products of half precision."""
    torch.manual_seed(0)
    model = Llama(layers=1).bfloat16().npu()
    caches = [model.caches(2, torch.bfloat16) for _ in range(2)]
    tokens = torch.arange(12, device="npu").view(2, 6)
    with torch.no_grad():
        expected = model(tokens, caches[0], 0)
        actual = torch.compile(model, backend="npu", dynamic=False)(tokens, caches[1], 0)
    torch.testing.assert_close(actual, expected, rtol=3e-2, atol=3e-2)
    for mine, theirs in zip(sum(caches[1], ()), sum(caches[0], ()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=3e-2)
