"""npu_group_quant against numpy float32 row by row."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.quant import plain
from tests.ops.support import make


def reference(x, scale, ends, offset=None):
    rows = plain.f32(x)
    factors = plain.f32(scale)
    out = np.zeros_like(rows)
    for i, row in enumerate(rows):
        out[i] = row * factors[plain.group_of(ends, i)]
        if offset is not None:
            out[i] += plain.f32(offset)[0]
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_int8(dtype, scale_dtype, index_dtype):
    ends = [1, 4, 6, 6]
    x, scale = (
        make(6, 5, dtype=dtype, low=-2, high=2),
        make(4, 5, dtype=scale_dtype, low=1, high=90),
    )
    offset = make(1, dtype=scale_dtype, low=-3, high=3)
    index = plain.npu(ends, index_dtype)
    y = torch_npu.npu_group_quant(x, scale, index, offset=offset, dst_dtype=torch.int8)
    assert y.dtype == torch.int8
    plain.same(y, plain.whole(reference(x, scale, ends, offset), -128, 127))


@pytest.mark.parametrize("ends", [[0, 0, 6], [6, 6, 6], [2, 2, 6]])
@pytest.mark.parametrize("code", [None, torch.qint8])
def test_empty_groups(ends, code):
    x, scale = make(6, 7, low=-2, high=2), make(3, 7, low=1, high=90)
    y = torch_npu.npu_group_quant(x, scale, plain.npu(ends, torch.int32), dst_dtype=code)
    plain.same(y, plain.whole(reference(x, scale, ends), -128, 127))


def test_int4():
    x, scale = make(5, 24, low=-2, high=2), make(2, 24, low=1, high=6)
    y = torch_npu.npu_group_quant(
        x, scale, plain.npu([3, 5], torch.int64), dst_dtype=torch.quint4x2
    )
    assert y.dtype == torch.int32 and y.shape == (5, 3)
    plain.same(plain.nibbles(y), plain.whole(reference(x, scale, [3, 5]), -8, 7))


def test_halves_saturation_and_not_a_number():
    x = plain.npu([[0.5, 1.5, -2.5, 300.0, -300.0, plain.NAN, plain.INF]])
    y = torch_npu.npu_group_quant(x, plain.npu([[1.0] * 7]), plain.npu([1], torch.int32))
    assert y.tolist() == [[0, 2, -2, 127, -128, 0, 127]]


def test_no_rows_and_non_contiguous():
    y = torch_npu.npu_group_quant(make(0, 8), make(2, 8), plain.npu([0, 0], torch.int32))
    assert y.shape == (0, 8)
    x, scale = make(7, 6, low=-2, high=2).t(), make(7, 2, low=1, high=90).t()
    index = plain.npu([2, 9, 6, 9], torch.int32)[::2]
    y = torch_npu.npu_group_quant(x, scale, index)
    assert y.is_contiguous()
    plain.same(y, plain.whole(reference(x, scale, [2, 6]), -128, 127))


def test_scale_of_another_width():
    with pytest.raises(
        RuntimeError,
        match=r"npu_group_quant: argument 'scale' must be of shape \(\*, 8\).*\(2, 7\)",
    ):
        torch_npu.npu_group_quant(make(4, 8), make(2, 7), plain.npu([2, 4], torch.int32))


def test_offset_of_two():
    with pytest.raises(RuntimeError, match=r"argument 'offset' must be of shape \(1\).*\(2,\)"):
        torch_npu.npu_group_quant(
            make(4, 8), make(1, 8), plain.npu([4], torch.int32), offset=make(2)
        )


@pytest.mark.parametrize(
    "ends,message",
    [
        ([3, 1], "'group_index' must be non-decreasing, but received 1 at index 1"),
        ([-2, 4], r"'group_index' must be in \[0, 4\], but received -2 at index 0"),
        (
            [2, 3],
            r"'group_index' must be a list that ends with the number of rows \(4\), but received 3",
        ),
    ],
)
def test_bad_groups(ends, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_group_quant(make(4, 8), make(2, 8), plain.npu(ends, torch.int32))


def test_bad_dst_dtype():
    with pytest.raises(RuntimeError, match="argument 'dst_dtype' must be the type int8 or int4"):
        torch_npu.npu_group_quant(
            make(4, 8), make(1, 8), plain.npu([4], torch.int32), dst_dtype=torch.uint8
        )
