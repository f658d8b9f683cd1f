"""Products of integers that lie in memory in unusual ways."""

import pytest
import torch

from torch_npu.ops._shared._gemm import int_product


@pytest.mark.parametrize("turn", [lambda t: t[:1].expand(t.shape), lambda t: t[:, ::2], torch.t])
def test_layouts(turn):
    g = torch.Generator().manual_seed(0)
    whole = torch.randint(-128, 128, (32, 32), generator=g).to(torch.int8)
    other = torch.randint(-128, 128, (32, 32), generator=g).to(torch.int8)
    a = turn(whole)
    b = other[: a.shape[1]]
    assert torch.equal(int_product(a, b).double(), a.double() @ b.double())
    assert torch.equal(int_product(b.t(), a.t()).double(), b.t().double() @ a.t().double())
