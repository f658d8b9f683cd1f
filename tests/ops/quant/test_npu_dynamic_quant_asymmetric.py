"""npu_dynamic_quant_asymmetric against numpy float32 row by row."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make


def reference(x, smooth=None, ends=None, low=-128, high=127):
    """Row by row: (values before rounding, scales, offsets)."""
    rows = plain.f32(x).reshape(-1, x.shape[-1])
    factors = None if smooth is None else plain.f32(smooth)
    values = np.zeros_like(rows)
    scales, offsets = np.zeros((2, len(rows)), np.float32)
    for i, row in enumerate(rows):
        if factors is not None:
            row = row * (factors if ends is None else factors[plain.group_of(ends, i)])
        scales[i] = (row.max() - row.min()) / np.float32(high - low)
        offsets[i] = np.float32(high) - row.max() / scales[i]
        values[i] = row * (np.float32(1) / scales[i]) + offsets[i]  # as A2 and A3 have it
    lead = x.shape[:-1]
    found = (torch.from_numpy(a).reshape(lead) for a in (scales, offsets))
    return (values.reshape(x.shape), *found)


def agree(result, expected, low, high):
    y, scale, offset = result
    values, want_scale, want_offset = expected
    assert scale.dtype == offset.dtype == torch.float32
    assert torch.allclose(scale.cpu(), want_scale, rtol=2.5e-7, atol=0) and torch.allclose(
        offset.cpu(), want_offset, rtol=1e-5, atol=1e-4
    )
    plain.same(y, plain.whole(values, low, high))


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 33), (2, 1, 3, 8)])
@pytest.mark.parametrize("smoothing", [False, True])
def test_int8(dtype, shape, smoothing):
    x = make(*shape, dtype=dtype, low=-3, high=5)
    smooth = make(shape[-1], dtype=dtype, low=0.2, high=2) if smoothing else None
    result = torch_npu.npu_dynamic_quant_asymmetric(x, smooth_scales=smooth)
    assert result[0].dtype == torch.int8
    agree(result, reference(x, smooth), -128, 127)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_int4(dtype):
    x = make(2, 3, 16, dtype=dtype, low=-3, high=5)
    y, *rest = torch_npu.npu_dynamic_quant_asymmetric(x, dst_type=torch.quint4x2)
    assert y.dtype == torch.int32 and y.shape == (2, 3, 2)
    agree((plain.nibbles(y), *rest), reference(x, low=-8, high=7), -8, 7)


@pytest.mark.family("A2")
@pytest.mark.parametrize("ends", [[2, 5, 6], [0, 6, 6], [6, 6, 6]])
def test_groups(ends):
    x = make(2, 3, 8, dtype=torch.float16)
    smooth = make(3, 8, dtype=torch.float16, low=0.2, high=2)
    index = plain.npu(ends, torch.int32)
    result = torch_npu.npu_dynamic_quant_asymmetric(x, smooth_scales=smooth, group_index=index)
    agree(result, reference(x, smooth, ends), -128, 127)


def test_extremes_reach_both_ends():
    y, _, _ = torch_npu.npu_dynamic_quant_asymmetric(
        plain.npu([[0.0, 1.0, 0.5, 0.25]], torch.float16)
    )
    assert y[0, 0] == -128 and y[0, 1] == 127


@pytest.mark.family("A2")
def test_row_of_equal_values():
    x = plain.npu([[2.0, 2.0], [0.0, 0.0], [-2.0, -2.0]], torch.float16)
    with on("A5"):
        y, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x)
    assert y.tolist() == [[0, 0]] * 3 and scale.tolist() == [0, 0, 0]
    assert offset[0] == -plain.INF and offset[1].isnan() and offset[2] == plain.INF
    _, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x)
    assert torch.equal(scale.cpu(), torch.full((3,), 1e-12))
    assert offset[1] == 127 and offset[0] < -1e12 < 1e12 < offset[2]


@pytest.mark.family("A2")
def test_non_contiguous_and_empty():
    x = make(8, 5, dtype=torch.float16).t()
    agree(torch_npu.npu_dynamic_quant_asymmetric(x), reference(x), -128, 127)
    y, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(make(0, 8, dtype=torch.float16))
    assert y.shape == (0, 8) and scale.shape == offset.shape == (0,)


def test_modes_on_ascend950():
    x, smooth = make(2, 4, 6, dtype=torch.bfloat16), make(4, dtype=torch.bfloat16, low=0.2, high=2)
    turned = x.transpose(-1, -2).contiguous()
    with on("A5"):
        y, *rest = torch_npu.npu_dynamic_quant_asymmetric(
            x, smooth_scales=smooth, quant_mode="perchannel"
        )
        flat, *one = torch_npu.npu_dynamic_quant_asymmetric(x, quant_mode="pertensor")
    agree((y.transpose(-1, -2), *rest), reference(turned, smooth), -128, 127)
    agree((flat.reshape(1, -1), *one), reference(x.reshape(1, -1)), -128, 127)


def test_dst_type_max_on_ascend950():
    x = make(3, 8, dtype=torch.float16)
    with on("A5"):
        _, scale, _ = torch_npu.npu_dynamic_quant_asymmetric(x, dst_type=291, dst_type_max=100.0)
    want = reference(x, low=-100, high=100)[1]
    assert torch.allclose(scale.cpu(), want, rtol=2.5e-7, atol=0)


def test_bad_input_dtype():
    with pytest.raises(
        RuntimeError,
        match="npu_dynamic_quant_asymmetric: argument 'input' must be of dtype .*float32",
    ):
        torch_npu.npu_dynamic_quant_asymmetric(make(2, 8))


def test_int4_needs_eights():
    with pytest.raises(
        RuntimeError, match="argument 'input' must be of a last dimension divisible by 8"
    ):
        torch_npu.npu_dynamic_quant_asymmetric(
            make(2, 12, dtype=torch.float16), dst_type=torch.quint4x2
        )


@pytest.mark.family("A2")
def test_smooth_scales_of_another_dtype():
    with pytest.raises(
        RuntimeError, match="'smooth_scales' must be of the dtype of 'input' .torch.float16."
    ):
        smooth = make(8, dtype=torch.bfloat16)
        torch_npu.npu_dynamic_quant_asymmetric(
            make(2, 8, dtype=torch.float16), smooth_scales=smooth
        )


def test_groups_of_another_number():
    with pytest.raises(
        RuntimeError, match=r"argument 'smooth_scales' must be of shape \(2, 8\).*\(3, 8\)"
    ):
        torch_npu.npu_dynamic_quant_asymmetric(
            make(6, 8, dtype=torch.float16),
            smooth_scales=make(3, 8, dtype=torch.float16),
            group_index=plain.npu([2, 6], torch.int32),
        )
