"""npu_quantize against numpy float32 and Python's rounding."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make

RANGES = {torch.qint8: (-128, 127), torch.quint8: (0, 255), torch.qint32: (-(2**31), 2**31 - 1)}
STORED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def along(factor, rank, axis):
    values = plain.f32(factor)
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", list(RANGES))
@pytest.mark.parametrize(
    "shape,axis", [((5, 7), 1), ((5, 7), 0), ((2, 3, 4, 5), 2), ((2, 3, 5), -1), ((0, 4), 1)]
)
def test_divided(dtype, target, shape, axis):
    x = make(*shape, dtype=dtype, low=-9, high=9)
    scales = make(shape[axis], low=0.01, high=0.2)
    points = make(shape[axis], dtype=torch.int32, low=-5, high=60)
    y = torch_npu.npu_quantize(x, scales, points, target, axis)
    want = plain.f32(x) / along(scales, len(shape), axis) + along(points, len(shape), axis)
    assert y.dtype == STORED[target] and y.is_contiguous()
    plain.same(y, plain.whole(want, *RANGES[target]))


@pytest.mark.parametrize("point", [torch.int8, torch.uint8, torch.bfloat16])
def test_zero_point_dtypes(point):
    dtype = torch.bfloat16 if point == torch.bfloat16 else torch.float32
    x, scales = make(4, 6, dtype=dtype, low=-9, high=9), make(6, dtype=dtype, low=0.1, high=0.5)
    points = make(6, dtype=point, low=0, high=9)
    y = torch_npu.npu_quantize(x, scales, points, torch.qint8)
    want = plain.f32(x) / plain.f32(scales) + plain.f32(points)
    plain.same(y, plain.whole(want, -128, 127))


def test_one_scale_and_no_zero_point():
    x, scales = make(3, 4, low=-9, high=9), plain.npu([0.05])
    y = torch_npu.npu_quantize(x, scales, None, torch.qint8)
    plain.same(y, plain.whole(plain.f32(x) / np.float32(0.05), -128, 127))


def test_halves_saturation_and_not_a_number():
    x = plain.npu([0.5, 1.5, 2.5, -0.5, -1.5, 200.0, -200.0, plain.NAN, plain.INF, -plain.INF])
    y = torch_npu.npu_quantize(x, plain.npu([1.0]), None, torch.qint8, 0)
    assert y.tolist() == [0, 2, 2, 0, -2, 127, -128, 0, 127, -128]
    y = torch_npu.npu_quantize(x * 2.0**30, plain.npu([1.0]), None, torch.qint32, 0)
    assert y.tolist()[5:] == [2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "shape,scale,axis",
    [
        ((5, 8), (8,), 1),
        ((5, 8), (1,), -1),
        ((2, 5, 8), (1, 5, 1), -2),
        ((5, 8), (5,), -2),
        ((2, 3, 8), (1, 1, 8), 0),
    ],
)
def test_multiplied(dtype, shape, scale, axis):
    x = make(*shape, dtype=dtype, low=-9, high=9)
    scales = make(*scale, dtype=dtype, low=1, high=20)
    points = make(*scale, dtype=dtype, low=-5, high=5, seed=3)
    view = (-1, 1) if axis == -2 and len(scale) == 1 else scale
    want = plain.f32(x) * plain.f32(scales).reshape(view) + plain.f32(points).reshape(view)
    y = torch_npu.npu_quantize(x, scales, points, torch.qint8, axis, False)
    assert y.dtype == torch.int8
    plain.same(y, plain.whole(want, -128, 127))
    y = torch_npu.npu_quantize(x, scales, points, torch.quint4x2, axis, False)
    assert y.dtype == torch.int32 and y.shape == (*shape[:-1], shape[-1] // 8)
    plain.same(plain.nibbles(y), plain.whole(want, -8, 7))


@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.bfloat16])
def test_multiplied_by_narrower_scales(scale_dtype):
    """Any axis from -1 on is the last one, even past the dimensions."""
    x, scales = make(5, 8, low=-9, high=9), make(8, dtype=scale_dtype, low=1, high=20)
    y = torch_npu.npu_quantize(x, scales, None, torch.qint8, 7, False)
    plain.same(y, plain.whole(plain.f32(x) * plain.f32(scales), -128, 127))


def test_divided_by_float16_scales():
    x, scales = make(5, 8, low=-9, high=9), make(8, dtype=torch.float16, low=0.1, high=0.5)
    y = torch_npu.npu_quantize(x, scales, None, torch.qint8)
    plain.same(y, plain.whole(plain.f32(x) / plain.f32(scales), -128, 127))


def test_float_points_on_ascend950():
    x, scales, points = make(5, 8, low=-9, high=9), make(8, low=0.1, high=0.5), make(8, high=9)
    with on("A5"):
        y = torch_npu.npu_quantize(x, scales, points, torch.qint8)
    want = plain.f32(x) / plain.f32(scales) + plain.f32(points)
    plain.same(y, plain.whole(want, -128, 127))


def test_mixed_dtypes():
    half, brain = make(4, 6, dtype=torch.float16), make(4, 6, dtype=torch.bfloat16)
    with pytest.raises(
        RuntimeError, match="argument 'scales' must be of dtype torch.float16.*float32"
    ):
        torch_npu.npu_quantize(half, make(6), None, torch.qint8, -1, False)
    with pytest.raises(
        RuntimeError, match="argument 'self' must be of dtype torch.bfloat16.*float16"
    ):
        torch_npu.npu_quantize(half, make(6, dtype=torch.bfloat16), None, torch.qint8)
    with pytest.raises(
        RuntimeError, match="argument 'zero_points' must be of dtype torch.bfloat16"
    ):
        points = make(6, dtype=torch.int32, high=2)
        torch_npu.npu_quantize(brain, make(6, dtype=torch.bfloat16), points, torch.qint8)


def test_non_contiguous():
    x, scales = make(8, 5, low=-9, high=9).t(), make(16, low=0.1, high=0.5)[::2]
    y = torch_npu.npu_quantize(x, scales, None, torch.qint8)
    assert y.is_contiguous()
    plain.same(y, plain.whole(plain.f32(x) / plain.f32(scales), -128, 127))


@pytest.mark.parametrize("target", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_on_ascend950(target):
    x, scales = make(4, 8, low=-9, high=9), make(8, low=0.001, high=0.5)
    with on("A5"):
        y = torch_npu.npu_quantize(x, scales, None, target)
    top = torch.finfo(target).max
    want = torch.from_numpy(plain.f32(x) / plain.f32(scales)).clamp(-top, top).to(target)
    assert y.dtype == target and torch.equal(y.cpu().float(), want.float())


def test_hifloat8_on_ascend950():
    with on("A5"):
        y = torch_npu.npu_quantize(
            plain.npu([[1.0, 2.0, 1e9, plain.NAN]]), plain.npu([1.0]), None, 290
        )
    assert y.dtype == torch.uint8 and y.tolist() == [[0x08, 0x10, 0x6E, 0x80]]


def test_scales_of_another_size():
    with pytest.raises(
        RuntimeError,
        match=r"npu_quantize: argument 'scales' must be of shape \(1\) or \(6\).*\(5,\)",
    ):
        torch_npu.npu_quantize(make(4, 6), make(5), None, torch.qint8)


def test_zero_points_of_another_size():
    with pytest.raises(
        RuntimeError, match="argument 'zero_points' must be of as many elements as 'scales' .6."
    ):
        points = make(1, dtype=torch.int32, low=0, high=2)
        torch_npu.npu_quantize(make(4, 6), make(6), points, torch.qint8)


def test_bad_dtype_argument():
    with pytest.raises(
        RuntimeError, match=r"argument 'dtype' must be the type int8, uint8 or int32.*float16 \(5\)"
    ):
        torch_npu.npu_quantize(make(4, 6), make(6), None, torch.float16)


def test_bad_axis():
    with pytest.raises(RuntimeError, match=r"argument 'axis' must be in \[-2, 2\), but received 2"):
        torch_npu.npu_quantize(make(4, 6), make(6), None, torch.qint8, 2)
    with pytest.raises(
        RuntimeError, match=r"argument 'axis' must be -2 or greater, but received -3"
    ):
        torch_npu.npu_quantize(make(4, 6), make(6), None, torch.qint8, -3, False)


def test_int4_needs_eights():
    with pytest.raises(
        RuntimeError, match=r"'self' must be of a last dimension divisible by 8, for int4.*\(4, 6\)"
    ):
        torch_npu.npu_quantize(make(4, 6), make(6), None, torch.quint4x2, -1, False)


def test_inference_series():
    with on("310P"):
        with pytest.raises(RuntimeError, match="argument 'self' must be of dtype .*bfloat16"):
            torch_npu.npu_quantize(make(4, 6, dtype=torch.bfloat16), make(6), None, torch.qint8)
        with pytest.raises(
            RuntimeError, match="argument 'dtype' must be the type int8, but received int4"
        ):
            torch_npu.npu_quantize(make(4, 8), make(8), None, torch.quint4x2, -1, False)
        with pytest.raises(
            RuntimeError, match=r"argument 'axis' must be -1 or greater, but received -2"
        ):
            torch_npu.npu_quantize(make(4, 8), make(4), None, torch.qint8, -2, False)
