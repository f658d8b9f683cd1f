"""Half-precision products in compiled graphs: eager's kernel, eager's numbers, no fp32 copy of a weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.torchair.support import assert_same_as_eager, randn

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
def test_products_are_those_of_eager_to_the_bit(dtype):
    def products(x, w, bias, cube):
        y = F.linear(x, w, bias)
        return y, x @ w.t(), torch.bmm(cube, cube), torch.mv(w, x[0])

    inputs = randn(3, 64), randn(48, 64), randn(48), randn(2, 8, 8)
    assert_same_as_eager(products, *(t.to(dtype) for t in inputs), tolerance=0.0)


def test_products_of_several_dtypes_are_those_of_eager():
    """A layer in float32 of an input in half precision: computed in float32, the bias has the result's dtype."""

    def products(x, w, bias):
        return F.linear(x, w, bias), F.linear(x[None], w, bias), torch.mm(x, w.t())

    x = randn(3, 64, dtype=torch.float16)
    assert_same_as_eager(products, x, randn(48, 64), randn(48), tolerance=1e-5)
    assert products(x, randn(48, 64), randn(48))[0].dtype == torch.float32


def test_a_compiled_linear_of_a_few_rows_copies_no_weight():
    x, w = randn(2, 1024, dtype=torch.bfloat16), randn(4096, 1024, dtype=torch.bfloat16)
    linear = torch.compile(F.linear, backend="npu")
    with torch.no_grad():
        linear(x, w)
        torch.npu.reset_peak_memory_stats()
        before = torch.npu.memory_allocated()
        linear(x, w)
        used = torch.npu.max_memory_allocated() - before
    assert used < w.nbytes // 8, f"{used} bytes beside a weight of {w.nbytes}"


def test_caches_that_a_graph_writes_are_written_in_place():
    """A view of an argument is scattered into it by Inductor, not by a call that copies the whole."""

    def write(cache, position, k):
        cache[1].index_copy_(1, position, k)
        return cache[1] * 2

    position = torch.tensor([3], device="npu")
    assert_same_as_eager(write, randn(2, 4, 8), position, randn(4, 1))
    from torchair._host import operators

    assert ("device", torch.ops.aten.select_scatter.default) not in operators._host_operators
