"""AOTAutograd's cache with our backends: what they return is kept and loaded again."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.output_code import OutputCode
from torch._inductor.utils import fresh_inductor_cache

import torchair
from torchair.compiler import get_npu_backend

CACHED = {
    "enable_autograd_cache": True,
    "force_autograd_cache": True,
    "bundled_autograd_cache": True,
}


@pytest.fixture(autouse=True)
def cache():
    torch._dynamo.reset()
    counters.clear()
    with fresh_inductor_cache(), torch._functorch.config.patch(CACHED):
        yield
    torch._dynamo.reset()


def config(mode: str) -> torchair.CompilerConfig:
    made = torchair.CompilerConfig()
    made.mode = mode
    return made


def found() -> tuple[int, int]:
    kept = counters["aot_autograd"]
    return kept["autograd_cache_miss"], kept["autograd_cache_hit"]


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_second_compilation_is_a_hit(mode, dynamic):
    weight = torch.randn(8, 4, device="npu")
    inputs = [torch.randn(n, 8, device="npu") for n in (3, 5)]

    def function(x):
        return torch.relu(x @ weight), (x + 1).sum(-1)

    backend = get_npu_backend(compiler_config=config(mode))
    for round_ in range(2):
        compiled = torch.compile(function, backend=backend, dynamic=dynamic)
        for x in inputs:
            for got, want in zip(compiled(x), function(x), strict=True):
                torch.testing.assert_close(got, want)
        miss, hit = found()
        assert (miss > 0, hit) == (True, 0) if round_ == 0 else hit == miss, (miss, hit)
        torch._dynamo.reset()


def test_gradients_of_a_loaded_graph():
    model = torch.nn.Linear(6, 3).npu()
    x = torch.randn(4, 6, device="npu")
    expected = torch.autograd.grad(torch.tanh(model(x)).sum(), list(model.parameters()))
    for _ in range(2):
        compiled = torch.compile(lambda x: torch.tanh(model(x)).sum(), backend=get_npu_backend())
        got = torch.autograd.grad(compiled(x), list(model.parameters()))
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        torch._dynamo.reset()
    miss, hit = found()
    assert miss == 1 and hit == 1


def test_it_is_pickled_as_a_graph():
    kept = []

    def backend(gm, inputs):
        from torch._dynamo.backends.common import aot_autograd

        from torchair._output_code import NpuOutputCode
        from torchair.compiler import compile_graph

        def compiler(graph, example):
            made = NpuOutputCode(
                compile_graph(graph, example, torchair.CompilerConfig()), graph, compile_graph
            )
            kept.append(made)
            return made

        return aot_autograd(fw_compiler=compiler)(gm, inputs)

    x = torch.ones(2, device="npu")
    with torch._functorch.config.patch(force_autograd_cache=False), torch.no_grad():
        assert torch.compile(lambda x: x * 3, backend=backend)(x).tolist() == [3.0, 3.0]
    (made,) = kept
    assert isinstance(made, OutputCode)
    made.prepare_for_serialization()
    assert made.run is None and isinstance(made.kept, bytes)
    assert pickle.loads(pickle.dumps(made.kept)) == made.kept
    with pytest.raises(AssertionError, match="post_compile makes a loaded graph callable"):
        made([x])
