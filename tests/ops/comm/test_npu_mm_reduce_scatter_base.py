"""npu_mm_reduce_scatter_base in a mirrored group: what it refuses. On ranks: test_products_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

NAME = "softnpu%mirror_2"


def test_mirrored():
    x, w = make(4, 256, dtype=torch.bfloat16), make(256, 4, dtype=torch.bfloat16)
    y = torch_npu.npu_mm_reduce_scatter_base(x, w, NAME, 2)
    want = 2 * (x.cpu().double() @ w.cpu().double())[:2]
    assert_accurate(y, want, want.bfloat16())


@pytest.mark.parametrize(
    "options,message",
    [
        ({"reduce_op": "max"}, "'reduce_op' must be 'sum', but received 'max'"),
        ({"comm_turn": 2}, "'comm_turn' must be left at 0"),
        ({"comm_mode": "x"}, "'comm_mode' must be"),
        ({"x1_scale": "given"}, "'x1_scale' must be left at None"),
    ],
)
def test_bad_options(options, message):
    x, w = make(4, 256, dtype=torch.float16), make(256, 4, dtype=torch.float16)
    if "x1_scale" in options:
        options = {"x1_scale": make(4, 1)}
    with pytest.raises(RuntimeError, match=f"npu_mm_reduce_scatter_base: argument {message}"):
        torch_npu.npu_mm_reduce_scatter_base(x, w, NAME, 2, **options)


def test_rows_that_cannot_be_shared_out():
    x, w = make(3, 256, dtype=torch.float16), make(256, 4, dtype=torch.float16)
    with pytest.raises(
        RuntimeError, match=r"'self' must be of m divisible by world_size \(2\), but received 3"
    ):
        torch_npu.npu_mm_reduce_scatter_base(x, w, NAME, 2)
