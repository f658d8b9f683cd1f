"""npu_dynamic_mx_quant against frexp and search, block by block."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import mx
from tests.ops.support import make

TYPES = (mx.E4M3, mx.E5M2, mx.E2M1, mx.E1M2)


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


@pytest.mark.parametrize("dst", TYPES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,axis", [((3, 128), -1), ((2, 70, 6), 1), ((40, 2), 0), ((38,), 0)])
def test_first_algorithm(dst, dtype, shape, axis):
    x = mx.spread(*shape, dtype=dtype)
    y, scale = torch_npu.npu_dynamic_mx_quant(x, axis=axis, dst_type=dst)
    mx.same(y, scale, mx.quantize(mx.f64(x), dst, axis), dst)
    assert y.dtype == {292: torch.float8_e4m3fn, 291: torch.float8_e5m2}.get(dst, torch.uint8)


@pytest.mark.parametrize("mode", ["rint", "round", "floor"])
@pytest.mark.parametrize("dst", TYPES[2:])
def test_rounding(dst, mode):
    halves = torch.arange(-64, 64).float().view(1, -1).repeat(1, 1) / 8
    x = torch.cat((halves, halves / 2 + 2**-9), 1).to(torch.bfloat16).npu()
    y, scale = torch_npu.npu_dynamic_mx_quant(x, dst_type=dst, round_mode=mode)
    mx.same(y, scale, mx.quantize(mx.f64(x), dst, mode=mode), dst)


@pytest.mark.parametrize("least", [0.0, 0.75])
@pytest.mark.parametrize("dst", TYPES[:2])
@pytest.mark.parametrize("axis", [-1, 0])
def test_second_algorithm(dst, axis, least):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = mx.spread(40, 96, dtype=dtype, low=-4, high=4)
        x[0] = 448.0  # an exact quotient
        y, scale = torch_npu.npu_dynamic_mx_quant(
            x, axis=axis, dst_type=dst, scale_alg=1, max_low_bound=least
        )
        mx.same(y, scale, mx.quantize(mx.f64(x), dst, axis, alg=1, least=least), dst)


@pytest.mark.parametrize("limit", [0.0, 6.0, 7.0, 8.5, 12.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("axis", [-1, 0])
def test_third_algorithm(limit, dtype, axis):
    """Around the mantissas 1.5 and 1.75: float16 is rounded to bfloat16 along the last axis, float32 is cut."""
    steps = 1 + torch.arange(0, 1024, dtype=torch.float32) / 1024
    x = torch.zeros(1024, 32)
    x[:, 5] = -steps
    x = (x if axis == -1 else x.t()).to(dtype).npu()

    def seen(top):
        if dtype == torch.float32:
            return math.floor(top * 128) / 128 if top >= 1 else top
        rounds = dtype == torch.float16 and axis == -1
        return float(torch.tensor(top).bfloat16()) if rounds else top

    y, scale = torch_npu.npu_dynamic_mx_quant(x, axis=axis, scale_alg=2, dst_type_max=limit)
    seen = seen if limit in (0.0, 6.0, 7.0) else None
    want = mx.quantize(mx.f64(x), mx.E2M1, axis, alg=2, limit=limit, seen=seen)
    mx.same(y, scale, want, mx.E2M1)


@pytest.mark.parametrize("size", [64, 96, 1024])
def test_block_sizes(size):
    x = mx.spread(2, 1100, dtype=torch.float16)
    y, scale = torch_npu.npu_dynamic_mx_quant(x, block_size=size, dst_type=mx.E5M2)
    mx.same(y, scale, mx.quantize(mx.f64(x), mx.E5M2, size=size), mx.E5M2)


@pytest.mark.parametrize("dst", TYPES)
@pytest.mark.parametrize("alg", [0, 1, 2])
def test_extremes(dst, alg):
    if alg == 1 and dst in TYPES[2:] or alg == 2 and dst != mx.E2M1:
        return
    x = torch.zeros(8, 64, dtype=torch.bfloat16)
    x[0, 3], x[1, 3], x[2, 40] = math.inf, math.nan, -math.inf
    x[3, 0], x[4, 0] = torch.finfo(torch.bfloat16).max, -(2.0**-126)
    x[5, 0], x[6, 0] = 2.0**-133, 2.0**-124
    x = x.npu()
    y, scale = torch_npu.npu_dynamic_mx_quant(x, dst_type=dst, scale_alg=alg)
    mx.same(y, scale, mx.quantize(mx.f64(x), dst, alg=alg), dst)
    assert scale[0, 0, 0] == 255 and scale[2, 0].tolist() == [0, 255] and not scale[7].any()


def test_negative_zero_keeps_its_sign():
    x = torch.tensor([[-0.0, -1.0] + [1e-9, -1e-9] * 15], dtype=torch.bfloat16).npu()
    y, _ = torch_npu.npu_dynamic_mx_quant(x)
    assert y[0, 0] == 0x8 | 0xE << 4 and y[0, 1] == 0x80


def test_strides_and_empty():
    x = mx.spread(64, 6).t()
    y, scale = torch_npu.npu_dynamic_mx_quant(x)
    mx.same(y, scale, mx.quantize(mx.f64(x), mx.E2M1), mx.E2M1)
    y, scale = torch_npu.npu_dynamic_mx_quant(make(0, 64, dtype=torch.float16))
    assert y.shape == (0, 32) and scale.shape == (0, 1, 2)


def test_round_trip():
    x = mx.spread(4, 96)
    y, scale = torch_npu.npu_dynamic_mx_quant(x, dst_type=mx.E4M3)
    back = torch_npu.npu_anti_mx_quant(y, scale, dst_type=torch.float32)
    values, bytes_ = mx.quantize(mx.f64(x), mx.E4M3)
    powers = np.repeat(2.0 ** (bytes_.reshape(4, -1).astype(float) - 127), 32, -1)[:, :96]
    np.testing.assert_array_equal(mx.f64(back), values * powers)


@pytest.mark.parametrize(
    "options,text",
    [
        ({"axis": 2}, "'axis' must be from -2 to 1, but received 2"),
        (
            {"block_size": 48},
            "'block_size' must be a multiple of 32 from 32 to 1024, but received 48",
        ),
        ({"dst_type": 290}, "'dst_type' must be the type float8_e4m3fn, .*, but received hifloat8"),
        (
            {"dst_type": 292, "round_mode": "floor"},
            "'round_mode' must be 'rint', but received 'floor'",
        ),
        ({"scale_alg": 1}, "'scale_alg' must be 0 or 2, but received 1"),
        ({"dst_type": 297, "scale_alg": 2}, "'scale_alg' must be 0, but received 2"),
        ({"scale_alg": 2, "block_size": 64}, "'block_size' must be 32, but received 64"),
        ({"dst_type_max": 5.0}, "'dst_type_max' must be 0 or from 6.0 to 12.0"),
        ({"max_low_bound": 1.0}, "'max_low_bound' must be 0 unless 'scale_alg' is 1"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(RuntimeError, match="npu_dynamic_mx_quant: argument " + text):
        torch_npu.npu_dynamic_mx_quant(make(2, 64, dtype=torch.float16), **options)


def test_bad_input():
    with pytest.raises(
        RuntimeError, match="'input' must be of dtype .*, but received torch.float64"
    ):
        torch_npu.npu_dynamic_mx_quant(make(2, 64, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="'input' must be of a last dimension divisible by 2"):
        torch_npu.npu_dynamic_mx_quant(make(2, 33, dtype=torch.float16))
    with pytest.raises(RuntimeError, match="'input' must be of at least 32 elements along 'axis'"):
        torch_npu.npu_dynamic_mx_quant(make(2, 30))
    with (
        on("A2"),
        pytest.raises(
            NotImplementedError, match="'device' must be Ascend950, but received Ascend910B"
        ),
    ):
        torch_npu.npu_dynamic_mx_quant(make(2, 64, dtype=torch.float16))
