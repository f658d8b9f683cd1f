"""npu_swiglu_quant against fp64, row by row."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.quant import plain
from tests.ops.support import make


def reference(x, scales=None, offsets=None, counts=None, left=False, top=None):
    """fp64 rows: values before rounding and scales; rows past the groups are 0."""
    rows = x.cpu().double().numpy().reshape(-1, x.shape[-1])
    half = rows.shape[1] // 2
    counts = counts or [len(rows)]
    groups = [g for g, n in enumerate(counts) for _ in range(n)]
    out, found = np.zeros((len(rows), half)), np.zeros(len(rows))
    for i, group in enumerate(groups):
        gate, linear = (
            (rows[i, :half], rows[i, half:]) if left else (rows[i, half:], rows[i, :half])
        )
        row = gate / (1 + np.exp(-gate)) * linear
        if scales is not None:
            row = row * scales.cpu().double().numpy()[group]
        if top:
            found[i] = top / np.abs(row).max()
            row = row * found[i]
        elif offsets is not None:
            row = row + offsets.cpu().double().numpy()[group]
        out[i] = row
    return out, found


def near(y, values, low, high):
    found, exact = y.cpu().double().numpy().reshape(values.shape), np.clip(values, low, high)
    assert np.abs(found - exact).max(initial=0) <= 0.5 + 1e-3
    assert (np.abs(found - exact) > 0.5).mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("shape", [(2, 8), (2,)])
@pytest.mark.parametrize("counts", [[2, 4], [0, 3]])
def test_dynamic(dtype, left, shape, counts):
    x, scales = make(6, 16, dtype=dtype, low=-3, high=3), make(*shape, low=0.5, high=2)
    ends = np.cumsum(counts).tolist()
    for kind, index in ((0, ends), (1, counts)):
        y, scale = torch_npu.npu_swiglu_quant(
            x,
            smooth_scales=scales,
            group_index=plain.npu(index, torch.int32),
            activate_left=left,
            quant_mode=1,
            group_list_type=kind,
        )
        values, want = reference(x, scales, None, counts, left, 127)
        assert y.dtype == torch.int8 and y.shape == (6, 8) and scale.shape == (6,)
        np.testing.assert_allclose(scale.cpu().numpy(), want, rtol=3e-6)
        near(y, values, -128, 127)


@pytest.mark.parametrize("shape", [(2, 8), (2,)])
def test_static(shape):
    x = make(6, 16, low=-3, high=3)
    scales, offsets = make(*shape, low=5, high=60), make(*shape, low=-9, high=9, seed=3)
    index = plain.npu([1, 6], torch.int32)
    y, scale = torch_npu.npu_swiglu_quant(
        x, smooth_scales=scales, offsets=offsets, group_index=index
    )
    near(y, reference(x, scales, offsets, [1, 5])[0], -128, 127)
    assert scale.tolist() == [0] * 6


@pytest.mark.parametrize("mode", [0, 1])
def test_int4(mode):
    x = make(2, 3, 16, dtype=torch.float16, low=-3, high=3)
    scales, offsets = make(1, low=1, high=3), make(1)
    y, _ = torch_npu.npu_swiglu_quant(
        x, smooth_scales=scales, offsets=offsets, quant_mode=mode, dst_type=torch.quint4x2
    )
    assert y.dtype == torch.int8 and y.shape == (2, 3, 4)
    values, _ = reference(x, scales, offsets, top=7 if mode else None)
    near(plain.nibbles(y), values, -8, 7)


def test_no_scales_zeros_and_non_contiguous():
    x = make(16, 5, low=-3, high=3).t()
    y, _ = torch_npu.npu_swiglu_quant(x)
    assert y.is_contiguous()
    near(y, reference(x)[0], -128, 127)
    y, _ = torch_npu.npu_swiglu_quant(torch.zeros_like(x), quant_mode=1)
    assert not y.any()


def test_bad_groups():
    x = make(4, 16)
    with pytest.raises(
        RuntimeError,
        match=r"npu_swiglu_quant: argument 'group_index' must be in \[0, 4\], but received 5 at index 1",
    ):
        torch_npu.npu_swiglu_quant(x, group_index=plain.npu([2, 5], torch.int32))
    with pytest.raises(RuntimeError, match=r"whose sum is at most the number of rows \(4\)"):
        torch_npu.npu_swiglu_quant(x, group_index=plain.npu([2, 3], torch.int32), group_list_type=1)


def test_scales_of_another_shape():
    with pytest.raises(
        RuntimeError, match=r"'smooth_scales' must be of shape \(1, 8\), \(8,\) or \(1,\)"
    ):
        torch_npu.npu_swiglu_quant(make(4, 16), smooth_scales=make(7), quant_mode=1)
    with pytest.raises(
        RuntimeError, match=r"'offsets' must be as 'smooth_scales' \(\(1,\)\).*None"
    ):
        torch_npu.npu_swiglu_quant(make(4, 16), smooth_scales=make(1))


def test_bad_arguments():
    with pytest.raises(
        RuntimeError, match=r"'x' must be of a last dimension .* divisible by 4.*\(4, 18\)"
    ):
        torch_npu.npu_swiglu_quant(make(4, 18), dst_type=torch.quint4x2)
    with pytest.raises(RuntimeError, match="'x' must be of a last dimension of at most 8192"):
        torch_npu.npu_swiglu_quant(make(1, 8194))
    with pytest.raises(RuntimeError, match="'quant_mode' must be 0 or 1, but received 2"):
        torch_npu.npu_swiglu_quant(make(4, 16), quant_mode=2)
    with pytest.raises(RuntimeError, match="'dst_type' must be the type int8 or int4"):
        torch_npu.npu_swiglu_quant(make(4, 16), dst_type=torch.uint8)
