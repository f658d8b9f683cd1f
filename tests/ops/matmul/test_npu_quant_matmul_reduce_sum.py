"""npu_quant_matmul_reduce_sum against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def inputs(b, m, k, n):
    x1 = make(b, m, k, dtype=torch.int8, low=-128, high=128)
    x2 = make(b, k, n, dtype=torch.int8, low=-128, high=128, seed=2)
    return x1, x2, make(b, m, low=0, high=0.01), make(n, dtype=torch.bfloat16, low=0, high=0.1)


@pytest.mark.parametrize("sizes", [(3, 4, 16, 8), (1, 1, 1, 1), (5, 3, 1500, 7)])
def test_sum(sizes):
    x1, x2, s1, s2 = inputs(*sizes)
    y = torch_npu.npu_quant_matmul_reduce_sum(x1, x2, x1_scale=s1, x2_scale=s2)
    parts = x1.cpu().double() @ x2.cpu().double() * s1.cpu().double()[..., None]
    want = (parts * s2.cpu().double()).sum(0)
    size = (parts * s2.cpu().double()).abs().sum(0)
    assert y.dtype == torch.bfloat16 and y.shape == want.shape
    # Each product and each of the sums is rounded to bfloat16.
    assert ((y.cpu().double() - want).abs() <= size * sizes[0] * 2.0**-8).all()


def test_sums_round_to_bfloat16():
    x1, x2 = (torch.ones(3, 1, 1, dtype=torch.int8).npu() for _ in range(2))
    s1 = torch.tensor([[256.0], [1.0], [1.0]]).npu()
    y = torch_npu.npu_quant_matmul_reduce_sum(
        x1, x2, x1_scale=s1, x2_scale=torch.ones(1, dtype=torch.bfloat16).npu()
    )
    assert y.item() == 256  # 256 + 1 is a half between neighbors, and 256 is even


def test_strides_and_format():
    x1, x2, s1, s2 = inputs(2, 32, 32, 32)
    y = torch_npu.npu_quant_matmul_reduce_sum(x1, x2, x1_scale=s1, x2_scale=s2)
    nz = torch_npu.npu_format_cast(x2.contiguous(), 29)
    assert torch.equal(torch_npu.npu_quant_matmul_reduce_sum(x1, nz, x1_scale=s1, x2_scale=s2), y)
    turned = x1.mT.contiguous().mT
    got = torch_npu.npu_quant_matmul_reduce_sum(turned, x2, x1_scale=s1, x2_scale=s2)
    assert torch.equal(got, y)


def test_bad_arguments():
    x1, x2, s1, s2 = inputs(2, 3, 4, 5)
    for args, scales, text in [
        ((x1[0], x2), (s1, s2), "'x1' must be a tensor of 3 dimensions"),
        ((x1.int(), x2), (s1, s2), "'x1' must be of dtype torch.int8"),
        ((x1, x2[:1]), (s1, s2), r"'x2' must be of shape \(2, 4, \*\), but received \(1, 4, 5\)"),
        ((x1, x2), (None, s2), "'x1_scale' must be given always"),
        ((x1, x2), (s1, s2.float()), "'x2_scale' must be of dtype torch.bfloat16"),
        ((x1, x2), (s1[:, :2], s2), r"'x1_scale' must be of shape \(2, 3\)"),
    ]:
        with pytest.raises(RuntimeError, match="npu_quant_matmul_reduce_sum: argument " + text):
            torch_npu.npu_quant_matmul_reduce_sum(*args, x1_scale=scales[0], x2_scale=scales[1])


def test_chips():
    x1 = make(2, 4, 16, dtype=torch.int8, low=-9, high=9)
    x2 = make(2, 16, 8, dtype=torch.int8, low=-9, high=9)
    scales = {"x1_scale": make(2, 4), "x2_scale": make(8, dtype=torch.bfloat16)}
    with on("A5"), pytest.raises(NotImplementedError, match="'device' must be of the family A2"):
        torch_npu.npu_quant_matmul_reduce_sum(x1, x2, **scales)
