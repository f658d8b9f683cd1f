"""The native routing of tokens to experts and back."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn
from torch_npu.ops.moe._routing import take_rows
from torch_npu.ops.moe.npu_moe_finalize_routing import npu_moe_finalize_routing
from torch_npu.ops.moe.npu_moe_init_routing import npu_moe_init_routing
from torch_npu.ops.moe.npu_moe_init_routing_v2 import npu_moe_init_routing_v2


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int8, torch.float64])
def test_take_rows(dtype):
    source, index = randn(5, 9, scale=9).to(dtype), torch.tensor([4, 0, -1, 2, 5, 2])
    take = torch.ops.softnpu.take_rows
    present = torch.tensor([True, False, False, True, False, True])
    for kind in (torch.int32, torch.int64):
        where = index.to(kind)
        assert torch.equal(take(source, where, None), take_rows(source, where))
        assert torch.equal(take(source, where, present), take_rows(source, where, present))
    assert torch.equal(take(source[:0], index, present), take_rows(source[:0], index, present))
    assert take(source.t(), index[:1], None).shape == (1, 5)
    with pytest.raises(
        IndexError, match=r"argument .index.: expected indices in \[0, 5\), received 5"
    ):
        take(source, torch.tensor([5]), torch.tensor([True]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_finalize(dtype, mode):
    for width in WIDTHS:
        rows = randn(12, width, dtype=dtype)
        rows = rows.view(3, 4, width) if mode in (1, 3) else rows
        index = torch.arange(12, dtype=torch.int32).flip(0)
        if mode in (1, 3):
            index[3] = -1
        expert = torch.arange(12, dtype=torch.int32).view(4, 3) % 3
        skip, bias = randn(4, width, dtype=dtype), randn(3, width, dtype=dtype)
        scales = randn(4, 3, dtype=dtype)
        compare(npu_moe_finalize_routing, rows, None, None, None, None, index, None, mode, 3)
        compare(npu_moe_finalize_routing, rows, skip, None, None, scales, index, None, mode)
        compare(
            npu_moe_finalize_routing, rows, skip, skip, bias, scales.float(), index, expert, mode
        )


@pytest.mark.parametrize("active", [0, 2, 5, 9])
def test_init_routing(active):
    x, row = randn(5, 33), torch.arange(10, dtype=torch.int32).view(2, 5).t()
    expert = torch.tensor([[3, 1], [0, 3], [3, 0], [-1, 2], [1, 1]], dtype=torch.int32)
    compare(npu_moe_init_routing, x, row, expert, active, exact=False)


@pytest.mark.parametrize("quant_mode", [-1, 0, 1])
@pytest.mark.parametrize("drop", [0, 1])
def test_init_routing_v2(quant_mode, drop):
    x = randn(6, 40, dtype=torch.float16)
    expert = torch.tensor([[3, 1], [0, 3], [3, 0], [1, 2], [1, 0], [3, 2]], dtype=torch.int32)
    options = {"expert_num": 4, "drop_pad_mode": drop, "quant_mode": quant_mode,
               "expert_tokens_num_flag": True, "expert_tokens_num_type": 1}  # fmt: skip
    if drop:
        options["expert_capacity"] = 2
    if quant_mode == 0:
        options |= {"scale": torch.tensor([3.0]), "offset": torch.tensor([1.0])}
    if quant_mode == 1:
        compare(npu_moe_init_routing_v2, x, expert, exact=False, scale=randn(4, 40), **options)
    compare(npu_moe_init_routing_v2, x, expert, exact=False, **options)
