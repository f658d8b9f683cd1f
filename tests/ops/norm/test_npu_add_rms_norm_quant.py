"""npu_add_rms_norm_quant against fp64 before the rounding."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm import quantized
from tests.ops.support import make

HALF, BF16, FLOAT, INT = torch.float16, torch.bfloat16, torch.float32, torch.int32

#: what float16 in between may move a value of up to 128 (tests/ops/test_rounding.py has the bits)
HALVES = 0.13


def inputs(shape, over, dtype=HALF, scale=FLOAT, zero=INT, low=0.02, high=0.08):
    """x1, x2, gamma, scales1, zero_points1, beta, scales2, zero_points2."""
    x1, x2 = make(*shape, dtype=dtype, seed=1), make(*shape, dtype=dtype, seed=2)
    gamma, beta = make(*over, dtype=dtype, seed=3), make(*over, dtype=dtype, seed=4)
    scales = [make(*over, dtype=scale, low=low, high=high, seed=s) for s in (5, 6)]
    zeros = [make(*over, dtype=zero, low=-9, high=9, seed=s) for s in (7, 8)]
    return x1, x2, gamma, scales[0], zeros[0], beta, scales[1], zeros[1]


def values(x, gamma, scale, zero, beta=None, divide=True, epsilon=1e-6):
    y, _ = quantized.norm(x, gamma, beta, epsilon)
    return quantized.affine(y, scale, zero, divide)


@pytest.mark.parametrize(
    "shape,over",
    [
        ((16,), (16,)),
        ((2, 16), (2, 16)),
        ((3, 5, 33), (33,)),
        ((2, 3, 4, 8), (4, 8)),
        ((4, 1), (1,)),
    ],
)
@pytest.mark.parametrize("types", [(HALF, FLOAT, INT), (BF16, BF16, BF16), (BF16, FLOAT, INT)])
def test_both_results(shape, over, types):
    args = inputs(shape, over, *types)
    y1, y2, x = torch_npu.npu_add_rms_norm_quant(*args)
    x1, x2, gamma, scales1, zero1, beta, scales2, zero2 = args
    assert torch.equal(x.cpu(), (x1.cpu().float() + x2.cpu().float()).to(x1.dtype))
    assert y1.dtype == y2.dtype == torch.int8 and y1.shape == y2.shape == x.shape
    quantized.rounds_to(y1, values(x, gamma, scales1, zero1, beta), slack=HALVES)
    quantized.rounds_to(y2, values(x, gamma, scales2, zero2, beta), slack=HALVES)


def test_one_result_and_products():
    x1, x2, gamma, scales1, zero1, *_ = inputs((6, 24), (24,), low=20, high=60)
    y1, y2, x = torch_npu.npu_add_rms_norm_quant(
        x1, x2, gamma, scales1, None, epsilon=0.1, div_mode=False
    )
    quantized.rounds_to(
        y1, values(x, gamma, scales1, None, divide=False, epsilon=0.1), slack=HALVES
    )
    assert y2.shape == y1.shape and not y2.any()


def test_one_scale_saturation_and_strides():
    x1, x2, gamma, *_ = inputs((24, 6), (6,))
    scale = torch.tensor([0.004]).npu()
    zero = torch.tensor([3], dtype=INT).npu()
    y1, _, x = torch_npu.npu_add_rms_norm_quant(x1[::2], x2[1::2], gamma, scale, zero)
    want = values(x, gamma, scale, zero)
    assert (want.abs() > 200).any()
    quantized.rounds_to(y1, want, slack=HALVES)


def test_empty():
    x1, x2, gamma, scales1, zero1, *_ = inputs((0, 16), (16,))
    y1, _, x = torch_npu.npu_add_rms_norm_quant(x1, x2, gamma, scales1, zero1)
    assert y1.shape == x.shape == (0, 16)


@pytest.mark.parametrize("code", [291, 292])
def test_float8_on_ascend950(code):
    args = inputs((6, 32), (32,), FLOAT, FLOAT, FLOAT)
    with on("A5"):
        y1, y2, x = torch_npu.npu_add_rms_norm_quant(*args, dst_type=code)
    quantized.float8_of(y1, values(x, args[2], args[3], args[4], args[5]), code)
    quantized.float8_of(y2, values(x, args[2], args[6], args[7], args[5]), code)


def test_hifloat8_on_ascend950():
    args = inputs((6, 32), (32,), HALF, HALF, HALF)
    with on("A5"):
        y1, _, x = torch_npu.npu_add_rms_norm_quant(*args, dst_type=290)
        back = torch_npu.npu_dtype_cast(y1, torch.float32, input_dtype=290)
    want = values(x, args[2], args[3], args[4], args[5])
    assert y1.dtype == torch.uint8
    assert ((back.cpu().double() - want).abs() <= want.abs() / 8 + 2.0**-22).all()


@pytest.mark.family("A2")
def test_bad_arguments():
    good = inputs((4, 16), (16,))
    for place, value, text in [
        (0, make(4, 16), "'x1' must be of dtype"),
        (1, make(4, 8, dtype=HALF), r"'x2' must be of shape \(4, 16\), but received \(4, 8\)"),
        (2, make(8, dtype=HALF), r"'gamma' must be of shape \(16\)"),
        (3, make(16, dtype=BF16), "'scales1' must be of dtype torch.float32, but received"),
        (4, make(16), "'zero_points1' must be of dtype torch.int32, but received torch.float32"),
        (5, make(16), "'beta' must be of the dtype of 'gamma'"),
    ]:
        args = [*good[:place], value, *good[place + 1 :]]
        with pytest.raises(RuntimeError, match="npu_add_rms_norm_quant: argument " + text):
            torch_npu.npu_add_rms_norm_quant(*args)
    with pytest.raises(RuntimeError, match="'axis' must be -1, but received 0"):
        torch_npu.npu_add_rms_norm_quant(*good, axis=0)
    with pytest.raises(RuntimeError, match="'dst_type' must be the type int8, but received float8"):
        torch_npu.npu_add_rms_norm_quant(*good, dst_type=292)


def test_atlas_inference_series():
    with on("310P"), pytest.raises(RuntimeError, match="'gamma' must be of at least 32 bytes"):
        torch_npu.npu_add_rms_norm_quant(*inputs((4, 8), (8,)))
    with on("310P"), pytest.raises(RuntimeError, match="'x1' must be of dtype torch.float16"):
        torch_npu.npu_add_rms_norm_quant(*inputs((4, 32), (32,), BF16, BF16, BF16))
