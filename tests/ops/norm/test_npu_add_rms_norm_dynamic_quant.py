"""npu_add_rms_norm_dynamic_quant against fp64 before the rounding."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm import quantized
from tests.ops.support import make


def inputs(*shape, dtype=torch.float16):
    rows = [make(shape[-1], dtype=dtype, seed=s) for s in (3, 4, 5, 6)]
    return make(*shape, dtype=dtype, seed=1), make(*shape, dtype=dtype, seed=2), *rows


def compare(y, scale, x1, x2, gamma, smooth, beta, top=127, epsilon=1e-6):
    x = x1.cpu().double() + x2.cpu().double()
    values, _ = quantized.norm(x, gamma, beta, epsilon)
    values = values if smooth is None else values * smooth.cpu().double()
    want = values.abs().amax(-1) / top
    assert scale.dtype == torch.float32
    torch.testing.assert_close(scale.cpu().double(), want, rtol=2e-6, atol=0)
    quantized.rounds_to(y, values / want.unsqueeze(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 32), (2, 1, 3, 5), (3, 1)])
def test_two_results(dtype, shape):
    x1, x2, gamma, smooth1, smooth2, beta = inputs(*shape, dtype=dtype)
    y1, y2, x, scale1, scale2 = torch_npu.npu_add_rms_norm_dynamic_quant(
        x1, x2, gamma, smooth_scale1=smooth1, smooth_scale2=smooth2, beta=beta, epsilon=1e-3
    )
    assert torch.equal(x.cpu(), (x1.cpu().float() + x2.cpu().float()).to(dtype))
    compare(y1, scale1, x1, x2, gamma, smooth1, beta, epsilon=1e-3)
    compare(y2, scale2, x1, x2, gamma, smooth2, beta, epsilon=1e-3)


@pytest.mark.parametrize(
    "smooth,mask,made",
    [
        ((), None, (True, False)),
        ((1,), None, (True, False)),
        ((2,), None, (True, False)),
        ((1, 2), None, (True, True)),
        ((), [False, True], (False, True)),
        ((1,), [True, False], (True, False)),
        ((2,), [True, True], (True, True)),
    ],
)
def test_which_results(smooth, mask, made):
    x1, x2, gamma, *factors, _ = inputs(4, 16)
    given = [factors[i] if i + 1 in smooth else None for i in (0, 1)]
    y1, y2, _, scale1, scale2 = torch_npu.npu_add_rms_norm_dynamic_quant(
        x1, x2, gamma, smooth_scale1=given[0], smooth_scale2=given[1], output_mask=mask
    )
    for y, scale, factor, wanted in zip((y1, y2), (scale1, scale2), given, made, strict=True):
        if wanted:
            compare(y, scale, x1, x2, gamma, factor, None)
        else:
            assert y.shape == scale.shape == () and y.dtype == torch.int8


def test_int4_and_strides():
    x1, x2, gamma, *_ = inputs(6, 16)
    y, _, _, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(
        x1[::2], x2[1::2], gamma, y_dtype=torch.quint4x2
    )
    assert y.dtype == torch.int32 and y.shape == (3, 2)
    compare(y, scale, x1[::2], x2[1::2], gamma, None, None, top=7)


def test_float8_on_ascend950():
    x1, x2, gamma, *_ = inputs(6, 32)
    with on("A5"):
        y, _, _, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma, y_dtype=292)
    values, _ = quantized.norm(x1.cpu().double() + x2.cpu().double(), gamma)
    want = values.abs().amax(-1, keepdim=True) / 448
    quantized.float8_of(y, values / want, 292)


@pytest.mark.family("A2")
def test_bad_arguments():
    x1, x2, gamma, smooth, *_ = inputs(4, 12)
    for args, options, text in [
        ((x1.float(), x2, gamma), {}, "'x1' must be of dtype torch.float16 or torch.bfloat16"),
        ((x1[0], x2[0], gamma), {}, "'x1' must be a tensor of 2 to 8 dimensions"),
        ((x1, x2[:2], gamma), {}, r"'x2' must be of shape \(4, 12\), but received \(2, 12\)"),
        ((x1, x2, gamma[:3]), {}, r"'gamma' must be of shape \(12\)"),
        ((x1, x2, gamma), {"beta": make(12)}, "'beta' must be of the dtype of 'x1'"),
        ((x1, x2, gamma), {"output_mask": [False, False]}, "'output_mask' must be True somewhere"),
        (
            (x1, x2, gamma),
            {"smooth_scale1": smooth, "output_mask": [False, True]},
            "'output_mask' must be True at 0 with 'smooth_scale1'",
        ),
        ((x1, x2, gamma), {"y_dtype": 16}, "'x1' must be of a last dimension divisible by 8"),
        ((x1, x2, gamma), {"y_dtype": 292}, "'y_dtype' must be the type int8 or int4"),
    ]:
        with pytest.raises(RuntimeError, match="npu_add_rms_norm_dynamic_quant: argument " + text):
            torch_npu.npu_add_rms_norm_dynamic_quant(*args, **options)
