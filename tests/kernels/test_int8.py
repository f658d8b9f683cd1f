"""Integer products on operands whose elements share memory, whichever kernel this CPU takes."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import views
from torch_npu.ops._shared._gemm import int_product


def integers(*shape: int) -> torch.Tensor:
    seed = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-128, 128, shape, generator=seed, dtype=torch.int8)


def arrangements(rows: int, columns: int) -> list[torch.Tensor]:
    """Matrices of one size with every kind of strides, zero and overlapping ones among them."""
    line = integers(rows + columns)
    return [
        *views(integers(rows, columns)),
        integers(1, columns).expand(rows, columns),
        integers(rows, 1).expand(rows, columns),
        integers(1, 1).expand(rows, columns),
        line.as_strided((rows, columns), (1, 1)),
        integers(columns, rows).t(),
    ]


@pytest.mark.parametrize("product", [int_product, torch.ops.softnpu.int8_mm])
@pytest.mark.parametrize("size", [(16, 32, 48), (1, 32, 48), (3, 5, 7), (5, 1, 3), (2, 2048, 1)])
def test_strides(product, size):
    rows, depth, columns = size
    for a in arrangements(rows, depth):
        for b in arrangements(depth, columns):
            expected = (a.double() @ b.double()).to(torch.int32)
            assert torch.equal(product(a, b), expected), (a.stride(), b.stride())
