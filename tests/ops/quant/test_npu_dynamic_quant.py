"""npu_dynamic_quant against numpy float32 row by row."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make
from torch_npu.ops._registry import operators

#: the kernels of the chips differ in the last place of a scale; tests/ops/test_rounding.py has the bits
NEAR = 2.5e-7


def reference(x, smooth=None, ends=None, top=127, divide=False):
    """Row by row: (values before rounding, scales); `divide` as Ascend950, else a product as A2 and A3."""
    rows = plain.f32(x).reshape(-1, x.shape[-1])
    factors = None if smooth is None else plain.f32(smooth)
    values, scales = np.zeros_like(rows), np.zeros(len(rows), np.float32)
    for i, row in enumerate(rows):
        if factors is not None:
            row = row * (factors if ends is None else factors[plain.group_of(ends, i)])
        scales[i] = np.abs(row).max() * np.float32(1 / np.float32(top))
        if scales[i]:
            values[i] = row / scales[i] if divide else row * (np.float32(top) / np.abs(row).max())
    return values.reshape(x.shape), torch.from_numpy(scales).reshape(x.shape[:-1])


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 33), (1, 1), (2, 1, 3, 8), (0, 8)])
@pytest.mark.parametrize("smoothing", [False, True])
def test_int8(dtype, shape, smoothing):
    x = make(*shape, dtype=dtype, low=-3, high=3)
    smooth = make(shape[-1], dtype=dtype, low=0.2, high=2) if smoothing else None
    y, scale = torch_npu.npu_dynamic_quant(x, smooth_scales=smooth)
    values, want_scale = reference(x, smooth)
    assert y.dtype == torch.int8 and scale.dtype == torch.float32 and y.is_contiguous()
    assert torch.allclose(scale.cpu(), want_scale, rtol=NEAR, atol=0)
    plain.same(y, plain.whole(values, -128, 127))


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("code", [torch.quint4x2, 285])
def test_int4(dtype, code):
    x = make(2, 3, 16, dtype=dtype)
    y, scale = torch_npu.npu_dynamic_quant(x, dst_type=code)
    values, want_scale = reference(x, top=7)
    assert y.dtype == torch.int32 and y.shape == (2, 3, 2)
    assert torch.allclose(scale.cpu(), want_scale, rtol=NEAR, atol=0)
    plain.same(plain.nibbles(y), plain.whole(values, -8, 7))


@pytest.mark.family("A2")
@pytest.mark.parametrize("ends", [[2, 5, 6], [0, 6, 6], [6, 6, 6], [0, 0, 6]])
def test_groups(ends):
    x = make(2, 3, 8, dtype=torch.float16)
    smooth = make(3, 8, dtype=torch.float16, low=0.2, high=2)
    index = plain.npu(ends, torch.int32)
    y, scale = torch_npu.npu_dynamic_quant(x, smooth_scales=smooth, group_index=index)
    values, want_scale = reference(x, smooth, ends)
    assert torch.allclose(scale.cpu(), want_scale, rtol=NEAR, atol=0)
    plain.same(y, plain.whole(values, -128, 127))


@pytest.mark.parametrize("part", ["kernel", "body"])
def test_int4_of_rows_without_elements(part):
    body = operators["npu_dynamic_quant"].as_function(part)
    y, scale = body(torch.ones(3, 0, dtype=torch.float16), dst_type=torch.quint4x2)
    assert y.shape == (3, 0) and y.dtype == torch.int32
    assert torch.equal(scale, torch.zeros(3))


def test_zero_rows_and_not_a_number():
    x = plain.npu([[0.0, 0.0], [plain.NAN, 1.0], [plain.INF, 1.0], [-2.0, 1.0]], torch.float16)
    y, scale = torch_npu.npu_dynamic_quant(x)
    assert y.tolist() == [[0, 0], [0, 0], [0, 0], [-127, 64]]
    assert scale[0] == 0 and scale[1].isnan() and scale[2].isinf()


def test_non_contiguous():
    x = make(8, 5, dtype=torch.float16).t()
    y, scale = torch_npu.npu_dynamic_quant(x)
    values, want_scale = reference(x)
    assert y.is_contiguous() and scale.is_contiguous()
    assert torch.allclose(scale.cpu(), want_scale, rtol=NEAR, atol=0)
    plain.same(y, plain.whole(values, -128, 127))


def test_perchannel_and_pertensor_on_ascend950():
    x, smooth = make(2, 4, 6, dtype=torch.bfloat16), make(4, dtype=torch.bfloat16, low=0.2, high=2)
    turned = x.transpose(-1, -2).contiguous()
    with on("A5"):
        y, scale = torch_npu.npu_dynamic_quant(x, smooth_scales=smooth, quant_mode="perchannel")
        flat, one = torch_npu.npu_dynamic_quant(x, quant_mode="pertensor")
    values, want_scale = reference(turned, smooth, divide=True)
    assert torch.allclose(scale.cpu(), want_scale, rtol=NEAR, atol=0)
    plain.same(y, plain.whole(values, -128, 127).transpose(-1, -2))
    values, want_scale = reference(x.reshape(1, -1), divide=True)
    assert one.shape == (1,) and torch.allclose(one.cpu(), want_scale, rtol=NEAR, atol=0)
    plain.same(flat.reshape(1, -1), plain.whole(values, -128, 127))


@pytest.mark.parametrize("code,top", [(torch.float8_e4m3fn, 448), (291, 57344), (290, 32768)])
def test_floats_on_ascend950(code, top):
    x = make(3, 8, dtype=torch.bfloat16)
    with on("A5"):
        y, scale = torch_npu.npu_dynamic_quant(x, dst_type=code)
    values, want_scale = reference(x, top=top, divide=True)
    assert torch.allclose(scale.cpu(), want_scale, rtol=NEAR, atol=0)
    if code == 290:
        assert y.dtype == torch.uint8 and y.shape == x.shape
        largest = torch.from_numpy(values) == top  # 0x6E is 32768
        assert largest.any() and set(y.cpu()[largest].tolist()) == {0x6E}
    else:
        assert torch.equal(y.cpu().float(), torch.from_numpy(values).to(y.dtype).float())


def test_dst_type_max_on_ascend950():
    x = make(3, 8, dtype=torch.float16)
    with on("A5"):
        _, scale = torch_npu.npu_dynamic_quant(x, dst_type=290, dst_type_max=15.0)
    assert torch.allclose(scale.cpu(), reference(x, top=15)[1], rtol=NEAR, atol=0)


def test_bad_input_dtype():
    with pytest.raises(
        RuntimeError, match="npu_dynamic_quant: argument 'input' must be of dtype .*float32"
    ):
        torch_npu.npu_dynamic_quant(make(2, 8))


def test_one_dimension():
    with pytest.raises(
        RuntimeError, match="argument 'input' must be a tensor of 2 to 8 dimensions"
    ):
        torch_npu.npu_dynamic_quant(make(8, dtype=torch.float16))


def test_smooth_scales_of_another_size():
    with pytest.raises(
        RuntimeError, match=r"argument 'smooth_scales' must be of shape \(8\).*\(7,\)"
    ):
        torch_npu.npu_dynamic_quant(
            make(2, 8, dtype=torch.float16), smooth_scales=make(7, dtype=torch.float16)
        )


@pytest.mark.parametrize(
    "ends,message",
    [
        ([4, 2, 6], "'group_index' must be non-decreasing, but received 2 at index 1"),
        ([-1, 2, 6], r"'group_index' must be in \[0, 6\], but received -1 at index 0"),
        ([1, 7, 9], r"'group_index' must be in \[0, 6\], but received 7 at index 1"),
        (
            [1, 2, 5],
            r"'group_index' must be a list that ends with the number of rows \(6\), but received 5",
        ),
    ],
)
def test_bad_groups(ends, message):
    x, smooth = make(6, 8, dtype=torch.float16), make(3, 8, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_dynamic_quant(
            x, smooth_scales=smooth, group_index=plain.npu(ends, torch.int32)
        )


def test_groups_need_scales():
    with pytest.raises(
        RuntimeError, match="argument 'smooth_scales' must be given with 'group_index'"
    ):
        index = plain.npu([6], torch.int32)
        torch_npu.npu_dynamic_quant(make(6, 8, dtype=torch.float16), group_index=index)


@pytest.mark.family("A2")
def test_options_of_ascend950_elsewhere():
    x = make(2, 8, dtype=torch.float16)
    with pytest.raises(
        RuntimeError, match="argument 'quant_mode' must be 'pertoken', but received 'perchannel'"
    ):
        torch_npu.npu_dynamic_quant(x, quant_mode="perchannel")
    with pytest.raises(
        RuntimeError, match=r"argument 'dst_type' must be the type int8 or int4.*\(292\)"
    ):
        torch_npu.npu_dynamic_quant(x, dst_type=292)
    with pytest.raises(NotImplementedError, match="argument 'dst_type_max' must be left at 0.0"):
        torch_npu.npu_dynamic_quant(x, dst_type_max=15.0)


@pytest.mark.parametrize("family", ["310P", "910A"])
def test_older_chips_take_float16_and_give_int8(family):
    with on(family):
        x = make(2, 16, dtype=torch.float16)
        assert torch_npu.npu_dynamic_quant(x)[0].dtype == torch.int8
        with pytest.raises(RuntimeError, match="argument 'input' must be of dtype torch.float16"):
            torch_npu.npu_dynamic_quant(make(2, 16, dtype=torch.bfloat16))
        with pytest.raises(RuntimeError, match="argument 'dst_type' must be"):
            torch_npu.npu_dynamic_quant(x, dst_type=torch.quint4x2)
