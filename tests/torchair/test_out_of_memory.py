"""Graph mode when the n-th allocation fails, for every n: an error, nothing leaked, and the next call works."""

from __future__ import annotations

import gc

import pytest
import torch

import torchair
from softnpu import faults
from tests.torchair.support import randn

MAX = 60


def function(x, w):
    y = torch.relu(x @ w)
    return torch.softmax(y, -1) + y.sum(-1, keepdim=True), y.argmax(-1)


def backend(mode):
    config = torchair.CompilerConfig()
    config.mode = mode
    return torchair.get_npu_backend(compiler_config=config)


@pytest.fixture(autouse=True)
def _no_faults():
    with faults.injected():
        yield


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_every_allocation_of_a_first_call(mode):
    """While it is traced, compiled (and captured) and run for the first time."""
    x, w = randn(8, 16), randn(16, 16)
    expected = function(x, w)
    failed = 0
    for nth in range(1, MAX):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend(mode), fullgraph=True)
        faults.out_of_memory(nth)
        try:
            compiled(x, w)
        except torch.OutOfMemoryError as error:
            failed += 1
            assert "out of memory" in str(error)
        faults.clear()
        torch.testing.assert_close(compiled(x, w), expected)
        if failed < nth:
            break
    assert 2 <= failed < MAX - 2  # there were allocations, and the loop came to the end of them


def test_every_allocation_of_a_compiled_call():
    """Compiled by Inductor, once; then each call fails at another place."""
    x, w = randn(8, 16), randn(16, 16)
    compiled = torch.compile(function, backend=backend("max-autotune"), fullgraph=True)
    expected = compiled(x, w)
    del expected
    gc.collect()
    before = torch.npu.memory_allocated()
    failed = 0
    for nth in range(1, MAX):
        faults.out_of_memory(nth)
        try:
            compiled(x, w)
        except torch.OutOfMemoryError:
            failed += 1
        faults.clear()
        gc.collect()
        assert torch.npu.memory_allocated() == before
        torch.testing.assert_close(compiled(x, w), function(x, w))
        if failed < nth:
            break
    assert 1 <= failed < MAX - 2
