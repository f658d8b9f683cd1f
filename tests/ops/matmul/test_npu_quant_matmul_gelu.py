"""npu_quant_matmul_gelu against fp64."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make


def gelu(x, tanh):
    if tanh:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def ints(*shape, seed=0):
    return make(*shape, dtype=torch.int8, low=-128, high=128, seed=seed)


def reference(x1, x2, s1, s2, bias=None, tanh=False):
    y = x1.cpu().double() @ x2.cpu().double()
    y = y + bias.cpu().double() if bias is not None and bias.dtype == torch.int32 else y
    y = y * s2.cpu().double() * s1.cpu().double()[:, None]
    y = y + bias.cpu().double() if bias is not None and bias.dtype != torch.int32 else y
    return gelu(y, tanh)


def compare(y, want, dtype):
    assert y.dtype == dtype
    eps = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert ((y.cpu().double() - want).abs() <= want.abs() * eps * 1.1 + 1e-6).all()


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [None, torch.int32, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("one", [True, False])
def test_int8(tanh, scale, bias, one):
    x1, x2 = ints(5, 300), ints(300, 7, seed=2)
    s1, s2 = make(5, low=1e-3, high=3e-3), make(1 if one else 7, dtype=scale, low=0.01, high=0.03)
    b = None if bias is None else make(7, dtype=bias, low=-3, high=3)
    if scale == torch.bfloat16 and bias == torch.float16:
        with pytest.raises(RuntimeError, match="'bias' must be of dtype .*float16"):
            torch_npu.npu_quant_matmul_gelu(x1, x2, s1, s2, bias=b)
        return
    y = torch_npu.npu_quant_matmul_gelu(
        x1, x2, s1, s2, bias=b, approximate="gelu_tanh" if tanh else "gelu_erf"
    )
    dtype = torch.bfloat16 if torch.bfloat16 in (scale, bias) else torch.float16
    compare(y, reference(x1, x2, s1, s2, b, tanh), dtype)


def test_batches_bias_and_strides():
    x1, x2 = ints(3, 1, 4, 16), ints(2, 8, 16, seed=2).mT
    s1, s2, bias = make(4, low=0, high=0.01), make(8, low=0, high=0.1), make(8)
    y = torch_npu.npu_quant_matmul_gelu(x1, x2, s1, s2, bias=bias, approximate=None)
    assert y.shape == (3, 2, 4, 8)
    compare(y, reference(x1, x2, s1, s2, bias), torch.float16)
    y = torch_npu.npu_quant_matmul_gelu(x1[:, 0], x2[0], s1, s2, bias=bias.expand(3, 1, 8))
    compare(y, reference(x1[:, 0], x2[0], s1, s2, bias), torch.float16)


def test_long_rows_of_int8():
    x1, x2 = ints(2, 65537), ints(65537, 3, seed=2)
    s1, s2 = make(2, low=0, high=1e-5), make(3, low=0, high=0.1)
    y = torch_npu.npu_quant_matmul_gelu(x1, x2, s1, s2)
    compare(y, reference(x1, x2, s1, s2), torch.float16)


@pytest.mark.parametrize("swapped", [False, True])
def test_int4(swapped):
    words = {"dtype": torch.int32, "low": -(2**31), "high": 2**31 - 1}
    x1 = make(4, 2, **words)
    x2 = make(8, 2, **words).mT if swapped else make(16, 1, **words)
    s1, s2 = make(4, low=0, high=0.1), make(8, low=0, high=0.1)
    bias = make(8, dtype=torch.int32, low=-50, high=50)
    y = torch_npu.npu_quant_matmul_gelu(x1, x2, s1, s2, bias=bias)
    left = plain.nibbles(x1).reshape(4, 16)
    right = plain.nibbles(x2.mT).reshape(8, 16).mT if swapped else plain.nibbles(x2).reshape(16, 8)
    compare(y, reference(left, right, s1, s2, bias), torch.float16)


def test_bad_arguments():
    x1, x2, s1, s2 = ints(4, 16), ints(16, 8), make(4), make(8)
    for args, options, text in [
        ((x1.float(), x2, s1, s2), {}, "'x1' must be of dtype torch.int8 or torch.int32"),
        ((x1, x2.int(), s1, s2), {}, "'x2' must be of the dtype of 'x1'"),
        ((x1, x2[:5], s1, s2), {}, "'x2' must be of 16 rows, the depth of 'x1', but received 5"),
        ((x1, x2, s1[:2], s2), {}, r"'x1_scale' must be of shape \(4\), but received \(2,\)"),
        ((x1, x2, s1, s2[:3]), {}, r"'x2_scale' must be of shape \(8,\) or \(1,\)"),
        ((x1, x2, s1, s2.half()), {}, "'x2_scale' must be of dtype torch.float32 or"),
        ((x1, x2, s1, s2), {"bias": s1}, r"'bias' must be of shape \(8,\), but received"),
        ((x1, x2, s1, s2), {"approximate": "none"}, "'approximate' must be 'gelu_tanh' or"),
        (
            (x1[None].repeat(3, 1, 1), x2[None].repeat(2, 1, 1), s1, s2),
            {},
            "'x2' must be of batches",
        ),
    ]:
        with pytest.raises(RuntimeError, match="npu_quant_matmul_gelu: argument " + text):
            torch_npu.npu_quant_matmul_gelu(*args, **options)
    with on("A5"), pytest.raises(NotImplementedError, match="'device' must be of the family A2"):
        torch_npu.npu_quant_matmul_gelu(x1, x2, s1, s2)
