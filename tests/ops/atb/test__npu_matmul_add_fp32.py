"""_npu_matmul_add_fp32 against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k,m,n", [(6, 4, 5), (1, 1, 1), (64, 33, 17), (0, 3, 2)])
def test_product_is_added(dtype, k, m, n):
    x, weight, total = make(k, m, dtype=dtype), make(k, n, dtype=dtype, seed=2), make(m, n)
    before = total.cpu().clone()
    assert torch_npu._npu_matmul_add_fp32(x, weight, total) is None
    expected = before.double() + x.cpu().double().T @ weight.cpu().double()
    assert_accurate(total, expected, before + x.cpu().float().T @ weight.cpu().float(), 1e-5)


def test_batches():
    x, weight = make(2, 6, 4, dtype=torch.float16), make(2, 6, 5, dtype=torch.float16, seed=2)
    total = make(2, 4, 5)
    expected = total.cpu().double() + x.cpu().double().mT @ weight.cpu().double()
    torch_npu._npu_matmul_add_fp32(x, weight, total)
    torch.testing.assert_close(total.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"C": make(4, 5, dtype=torch.float16)}, "'C' must be of dtype torch.float32"),
        ({"C": make(5, 4).t()}, "'C' must be contiguous"),
        ({"C": make(5, 4)}, r"'C' must be of shape \(4, 5\)"),
        ({"weight": make(5, 5, dtype=torch.float16)}, r"'weight' must be of shape \(6, \*\)"),
        ({"x": make(6, 4)}, "'x' must be of dtype"),
    ],
)
def test_refusals(change, message):
    given = dict(
        x=make(6, 4, dtype=torch.float16), weight=make(6, 5, dtype=torch.float16), C=make(4, 5)
    )
    with pytest.raises(RuntimeError, match=f"_npu_matmul_add_fp32: argument {message}"):
        torch_npu._npu_matmul_add_fp32(**(given | change))
