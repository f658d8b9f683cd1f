"""npu_rms_norm_quant and npu_rms_norm_quant_v2 against fp64 before the rounding."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm import quantized
from tests.ops.support import make

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32

#: what float16 in between may move a value of up to 128 (tests/ops/test_rounding.py has the bits)
HALVES = 0.13


def inputs(*shape, dtype=HALF, row=None, scale=0.03, offset=torch.int8):
    size = shape[-1]
    row = row or (size,)
    gamma, beta = make(*row, dtype=dtype, seed=3), make(*row, dtype=dtype, seed=4)
    factor = torch.tensor([scale]).to(dtype).npu()
    return make(*shape, dtype=dtype), gamma, beta, factor, make(1, dtype=offset, low=-5, high=6)


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("shape", [(16,), (3, 40), (2, 1, 3, 24), (2, 1)])
@pytest.mark.parametrize("flat", [True, False])
def test_int8(dtype, shape, flat):
    row = (shape[-1],) if flat else (1, shape[-1])
    x, gamma, beta, scale, offset = inputs(*shape, dtype=dtype, row=row)
    y = torch_npu.npu_rms_norm_quant(x, gamma, beta, scale, offset, 1e-4)
    want, _ = quantized.norm(x, gamma, beta, 1e-4, 1)
    assert y.dtype == torch.int8 and y.shape == x.shape
    quantized.rounds_to(y, quantized.affine(want, scale, offset).reshape(x.shape), slack=HALVES)


def test_int4_and_strides():
    x, gamma, beta, scale, offset = inputs(16, 6, scale=0.3)
    x, gamma, beta = x.t(), make(16, dtype=HALF), make(32, dtype=HALF)[::2]
    y = torch_npu.npu_rms_norm_quant(x, gamma, beta, scale, offset, dst_dtype=torch.quint4x2)
    want, _ = quantized.norm(x, gamma, beta)
    assert y.shape == (6, 2)
    quantized.rounds_to(y, quantized.affine(want, scale, offset), slack=HALVES)


@pytest.mark.parametrize(
    "dtype,factor,offset",
    [
        (FLOAT, FLOAT, FLOAT),
        (HALF, FLOAT, FLOAT),
        (BF16, FLOAT, torch.int32),
        (HALF, HALF, HALF),
        (BF16, BF16, torch.int8),
    ],
)
@pytest.mark.parametrize("size", [1, 32])
def test_float8_on_ascend950(dtype, factor, offset, size):
    x, gamma, beta, *_ = inputs(4, 32, dtype=dtype)
    scale = make(size, low=0.02, high=0.05).to(factor)
    zero = make(size, dtype=offset, low=-5, high=6)
    with on("A5"):
        y = torch_npu.npu_rms_norm_quant(x, gamma, beta, scale, zero, dst_dtype=291)
    want, _ = quantized.norm(x, gamma, beta)
    quantized.float8_of(y, quantized.affine(want, scale, zero), 291)


@pytest.mark.family("A2")
def test_bad_arguments():
    x, gamma, beta, scale, offset = inputs(4, 12)
    for args, options, text in [
        ((x.float(), gamma, beta, scale, offset), {}, "'x' must be of dtype torch.float16 or"),
        ((x, gamma[:3], beta, scale, offset), {}, r"'gamma' must be of shape \(12,\) or \(1, 12\)"),
        ((x, gamma, beta.float(), scale, offset), {}, "'beta' must be of the dtype of 'x'"),
        ((x, gamma, beta[None], scale, offset), {}, r"'beta' must be of shape \(12\)"),
        ((x, gamma, beta, scale.float(), offset), {}, "'scale' must be of the dtype of 'x'"),
        ((x, gamma, beta, scale, offset), {"epsilon": 0.0}, "'epsilon' must be positive"),
        ((x, gamma, beta, gamma, offset), {}, r"'scale' must be of shape \(1\)"),
        ((x, gamma, beta, scale, scale), {}, "'offset' must be of dtype torch.int8"),
        ((x[:0], gamma, beta, scale, offset), {}, "'x' must be not empty"),
        ((x, gamma, beta, scale, offset), {"dst_dtype": 16}, "'x' must be of a last dimension div"),
    ]:
        with pytest.raises(RuntimeError, match="npu_rms_norm_quant: argument " + text):
            torch_npu.npu_rms_norm_quant(*args, **options)


@pytest.mark.parametrize("dtype", [HALF, BF16, FLOAT])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("divide", [True, False])
def test_v2(dtype, single, divide):
    x, gamma, beta, *_ = inputs(2, 3, 24, dtype=dtype)
    bounds = (0.02, 0.08) if divide else (10, 60)
    scale = make(1 if single else 24, low=bounds[0], high=bounds[1])
    offset = make(*scale.shape, low=-5, high=5)
    with on("A5"):
        y, rstd = torch_npu.npu_rms_norm_quant_v2(
            x, gamma, scale, offset=offset, beta=beta, epsilon=1e-3, div_mode=divide
        )
        bare, _ = torch_npu.npu_rms_norm_quant_v2(x, gamma, scale, div_mode=divide)
    want, norm = quantized.norm(x, gamma, beta, 1e-3)
    quantized.rounds_to(y, quantized.affine(want, scale, offset, divide), slack=HALVES)
    torch.testing.assert_close(rstd.cpu().double(), norm, rtol=1e-5, atol=0)
    plain, _ = quantized.norm(x, gamma)
    quantized.rounds_to(bare, quantized.affine(plain, scale, None, divide), slack=HALVES)


def test_v2_formats():
    x, gamma, *_ = inputs(4, 32)
    scale = torch.tensor([0.3]).npu()
    want = quantized.affine(quantized.norm(x, gamma)[0], scale, None)
    with on("A5"):
        four, _ = torch_npu.npu_rms_norm_quant_v2(x, gamma, scale, dst_dtype=torch.quint4x2)
        eight, _ = torch_npu.npu_rms_norm_quant_v2(x, gamma, scale, dst_dtype=292)
    quantized.rounds_to(four, want, slack=HALVES)
    quantized.float8_of(eight, want, 292)


@pytest.mark.family("A2")
def test_v2_bad_arguments():
    x, gamma, beta, scale, offset = inputs(4, 12)
    for args, options, text in [
        ((x, gamma, gamma[:5]), {}, r"'scale' must be of shape \(1,\) or \(12,\)"),
        (
            (x, gamma, scale.bfloat16()),
            {},
            "'scale' must be of dtype torch.float16 or torch.float32",
        ),
        ((x, gamma, scale), {"offset": gamma}, r"'offset' must be of shape \(1\)"),
        (
            (x, gamma, scale),
            {"offset": offset.bool()},
            "'offset' must be of dtype torch.float16 or",
        ),
        ((x, gamma, scale.float()), {"offset": offset}, "'offset' must be of dtype torch.float32"),
    ]:
        with (
            on("A5"),
            pytest.raises(RuntimeError, match="npu_rms_norm_quant_v2: argument " + text),
        ):
            torch_npu.npu_rms_norm_quant_v2(*args, **options)
    with pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_rms_norm_quant_v2(x, gamma, scale, beta=beta)


def test_integers_of_4_bits_are_not_on_the_inference_series():
    args = inputs(4, 16)
    with on("310P"), pytest.raises(RuntimeError, match="'dst_dtype' must be the type int8"):
        torch_npu.npu_rms_norm_quant(*args, dst_dtype=torch.quint4x2)
