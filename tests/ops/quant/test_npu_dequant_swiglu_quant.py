"""npu_dequant_swiglu_quant against fp64, row by row."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make


def swish(z, alpha=1.0):
    return z / (1 + np.exp(-alpha * z))


def activated(row, mode, left, limit=7.0, alpha=1.702, shift=1.0):
    half = len(row) // 2
    if mode == 1:
        gate, linear = row[0::2], row[1::2]
    elif left:
        gate, linear = row[:half], row[half:]
    else:
        gate, linear = row[half:], row[:half]
    if mode == 0:
        return swish(gate) * linear
    return swish(np.minimum(gate, limit), alpha) * (np.clip(linear, -limit, limit) + shift)


def reference(
    x, weight=None, activation=None, bias=None, counts=None, mode=0, left=False, **options
):
    """fp64 values after the activation, and each row's group (None past the groups)."""
    rows = x.cpu().double().numpy()
    counts = counts or [len(rows)]
    groups = [g for g, n in enumerate(counts) for _ in range(n)] + [None] * (
        len(rows) - sum(counts)
    )
    out = np.zeros((len(rows), rows.shape[1] // 2))
    for i, row in enumerate(rows):
        if groups[i] is None:
            continue
        if bias is not None and not bias.is_floating_point():
            row = (
                row
                + bias.cpu()
                .double()
                .numpy()
                .reshape(-1, len(row))[min(groups[i], bias.numel() // len(row) - 1)]
            )
        if weight is not None:
            row = row * weight.cpu().double().numpy().reshape(len(counts), -1)[groups[i]]
        if activation is not None:
            row = row * activation.cpu().double().numpy().reshape(-1)[i]
        if bias is not None and bias.is_floating_point():
            row = row + bias.cpu().double().numpy().reshape(len(counts), -1)[groups[i]]
        out[i] = activated(row, mode, left, **options)
    return out, groups


def near(y, values, low=-128, high=127):
    """Rounded within float32's error before rounding: only a value at a half may fall to the other side."""
    found = y.cpu().double().numpy()
    exact = np.clip(values, low, high)
    assert np.abs(found - exact).max(initial=0) <= 0.5 + 1e-3
    assert (np.abs(found - exact) > 0.5).mean() < 0.01


def dynamic(values):
    scale = np.abs(values).max(-1, initial=0) / 127
    return values / np.where(scale == 0, 1, scale)[:, None], scale


def agree_dynamic(result, values):
    scaled, scale = dynamic(values)
    y, found = result
    assert y.dtype == torch.int8 and found.dtype == torch.float32 and found.shape == y.shape[:-1]
    np.testing.assert_allclose(found.cpu().numpy(), scale, rtol=2e-6)
    near(y, scaled)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("counts", [[5], [2, 1, 2], [0, 3, 1], [0, 0, 5]])
def test_groups_dynamic(mode, left, counts):
    n = len(counts)
    x = make(5, 128, dtype=torch.int32, low=-90, high=90)
    weight, activation = make(n, 128, low=0.01, high=0.2), make(5, 1, low=0.1, high=2)
    smooth = make(n, 64, low=-2, high=2)
    result = torch_npu.npu_dequant_swiglu_quant(
        x,
        weight_scale=weight,
        activation_scale=activation,
        quant_scale=smooth,
        group_index=plain.npu(counts, torch.int64),
        activate_left=left,
        quant_mode=1,
        swiglu_mode=mode,
    )
    values, groups = reference(x, weight, activation, None, counts, mode, left)
    factors = smooth.cpu().double().numpy()
    for i, group in enumerate(groups):
        values[i] *= 0 if group is None else factors[group]
    agree_dynamic(result, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("left", [False, True])
def test_floating_input(dtype, left):
    x = make(3, 10, dtype=dtype, low=-4, high=4)
    result = torch_npu.npu_dequant_swiglu_quant(x, activate_left=left, quant_mode=1)
    agree_dynamic(result, reference(x, left=left)[0])


def test_limits_of_the_variants():
    x = make(4, 16, dtype=torch.bfloat16, low=-9, high=9)
    options = {"clamp_limit": 2.0, "glu_alpha": 0.5, "glu_bias": -0.25}
    for mode in (1, 2):
        result = torch_npu.npu_dequant_swiglu_quant(x, quant_mode=1, swiglu_mode=mode, **options)
        values, _ = reference(x, mode=mode, limit=2.0, alpha=0.5, shift=-0.25)
        agree_dynamic(result, values)


@pytest.mark.parametrize("shape", [(16,), (1, 16)])
def test_bias_and_one_group(shape):
    x = make(4, 16, dtype=torch.int32, low=-90, high=90)
    weight, bias = make(*shape, low=0.01, high=0.1), make(*shape, dtype=torch.int32, low=-9, high=9)
    result = torch_npu.npu_dequant_swiglu_quant(x, weight_scale=weight, bias=bias, quant_mode=1)
    agree_dynamic(result, reference(x, weight, None, bias)[0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bfloat16])
def test_bias_of_groups(dtype):
    """A half of 32 and a bias for each group; the rows may have more dimensions."""
    counts = [1, 3]
    x = make(2, 2, 64, dtype=torch.int32, low=-90, high=90)
    weight, activation = make(2, 64, low=0.01, high=0.2), make(2, 2, 1, low=0.1, high=2)
    bias = make(2, 64, dtype=dtype, low=-9, high=9)
    y, scale = torch_npu.npu_dequant_swiglu_quant(
        x, weight_scale=weight, activation_scale=activation, bias=bias, quant_mode=1,
        group_index=plain.npu(counts, torch.int64),
    )  # fmt: skip
    assert y.shape == (2, 2, 32) and scale.shape == (2, 2)
    values, _ = reference(x.reshape(4, 64), weight, activation, bias, counts)
    agree_dynamic((y.reshape(4, 32), scale.reshape(4)), values)


@pytest.mark.parametrize("size", ["rows", "scalars"])
@pytest.mark.parametrize("shifted", [False, True])
def test_static(size, shifted):
    x, counts = make(5, 128, dtype=torch.int32, low=-50, high=50), [2, 3]
    weight = make(2, 128, low=0.01, high=0.2)
    shape = (2, 64) if size == "rows" else (2,)
    scale = make(*shape, low=0.05, high=0.5)
    offset = make(*shape, low=-9, high=9, seed=3) if shifted else None
    y, unused = torch_npu.npu_dequant_swiglu_quant(
        x,
        weight_scale=weight,
        quant_scale=scale,
        quant_offset=offset,
        group_index=plain.npu(counts, torch.int64),
    )
    values, groups = reference(x, weight, counts=counts)
    for i, group in enumerate(groups):
        values[i] /= scale.cpu().double().numpy()[group]
        values[i] += 0 if offset is None else offset.cpu().double().numpy()[group]
    near(y, values)
    assert unused.tolist() == [0] * 5


def test_saturation_and_no_tokens():
    y, _ = torch_npu.npu_dequant_swiglu_quant(plain.npu([[60.0, -60.0, 60.0, 60.0]], torch.float16))
    assert y.tolist() == [[127, -128]]
    y, scale = torch_npu.npu_dequant_swiglu_quant(make(0, 8, dtype=torch.float16), quant_mode=1)
    assert y.shape == (0, 4) and scale.shape == (0,)


def test_large_sums_stay_exact_until_dequantized():
    x = plain.npu([[2**24 + 1, 2**24 + 1]], torch.int32)
    bias = plain.npu([-(2**24), -(2**24)], torch.int32)
    _, scale = torch_npu.npu_dequant_swiglu_quant(x, bias=bias, quant_mode=1)
    np.testing.assert_allclose(scale.item(), swish(1.0) / 127, rtol=2e-6)


def test_floating_bias_and_formats_on_ascend950():
    x, weight, bias = make(8, 4, dtype=torch.int32, low=-10, high=10), make(4), make(4, seed=3)
    with on("A5"):
        y, scale = torch_npu.npu_dequant_swiglu_quant(
            x,
            weight_scale=weight,
            bias=bias,
            quant_mode=1,
            dst_type=291,
            round_mode=0,
            activate_dim=-1,
        )
    rows = x.cpu().double().numpy() * plain.f32(weight) + plain.f32(bias)
    values = np.stack([activated(row, 0, False) for row in rows])
    want = np.abs(values).max(-1) / 57344
    assert y.dtype == torch.float8_e5m2
    np.testing.assert_allclose(scale.cpu().numpy(), want, rtol=2e-6)
    np.testing.assert_allclose(y.cpu().double().numpy(), values / want[:, None], rtol=0.13)


def test_other_dimension_on_ascend950():
    x = make(4, 3, 6, dtype=torch.float16, low=-4, high=4)
    scale = plain.npu([0.05])
    with on("A5"):
        y, unused = torch_npu.npu_dequant_swiglu_quant(x, quant_scale=scale, activate_dim=0)
    turned = x.permute(1, 2, 0).reshape(18, 4)
    values = reference(turned)[0].reshape(3, 6, 2).transpose(2, 0, 1) / np.float32(0.05)
    assert y.shape == (2, 3, 6) and unused.shape == (2, 3)
    near(y, values)


@pytest.mark.parametrize(
    "mode,expected", [(0, [2, 0]), (1, [3, 0.5]), (2, [2, 0]), (3, [3, 0.5]), (4, [2, 0])]
)
def test_float4_rounding_on_ascend950(mode, expected):
    gate = 32.0  # swish(32) is 32 in float32
    x = plain.npu([[2.5 / 32, 0.25 / 32, gate, gate]], torch.float16)
    with on("A5"):
        y, _ = torch_npu.npu_dequant_swiglu_quant(x, dst_type=296, round_mode=mode, activate_dim=-1)
    assert y.dtype == torch.uint8
    codes = plain.nibbles(y).reshape(-1).tolist()
    assert [[0, 0.5, 1, 1.5, 2, 3, 4, 6][c] for c in codes] == expected


def test_groups_that_exceed_the_rows():
    with pytest.raises(
        RuntimeError,
        match=r"npu_dequant_swiglu_quant: argument 'group_index' must be a list whose sum is at most the number of rows \(4\), but received 5",
    ):
        torch_npu.npu_dequant_swiglu_quant(
            make(4, 128, dtype=torch.bfloat16), group_index=plain.npu([2, 3], torch.int64)
        )
    with pytest.raises(
        RuntimeError,
        match="argument 'group_index' must be non-negative, but received -1 at index 1",
    ):
        torch_npu.npu_dequant_swiglu_quant(
            make(4, 128, dtype=torch.bfloat16), group_index=plain.npu([2, -1], torch.int64)
        )


def test_scales_of_another_shape():
    x = make(4, 16, dtype=torch.int32, low=-9, high=9)
    with pytest.raises(
        RuntimeError, match=r"argument 'weight_scale' must be of shape \(1, 16\) or \(16,\).*\(8,\)"
    ):
        torch_npu.npu_dequant_swiglu_quant(x, weight_scale=make(8))
    with pytest.raises(
        RuntimeError,
        match=r"argument 'activation_scale' must be of 4 elements, but received \(5, 1\)",
    ):
        torch_npu.npu_dequant_swiglu_quant(x, activation_scale=make(5, 1))
    with pytest.raises(
        RuntimeError, match=r"argument 'quant_scale' must be of shape \(1, 8\).*\(1, 16\)"
    ):
        torch_npu.npu_dequant_swiglu_quant(x, quant_scale=make(1, 16))


@pytest.mark.family("A2")
def test_what_does_not_go_together():
    x = make(4, 128, dtype=torch.int32, low=-9, high=9)
    index, bias = plain.npu([2, 2], torch.int64), make(128, dtype=torch.int32, high=2)
    with pytest.raises(
        RuntimeError, match=r"argument 'bias' must be of shape \(2, 128\).*\(128,\)"
    ):
        torch_npu.npu_dequant_swiglu_quant(x, bias=bias, group_index=index)
    with pytest.raises(
        RuntimeError, match="argument 'x' must be of dtype torch.int32 or torch.bfloat16"
    ):
        torch_npu.npu_dequant_swiglu_quant(x.half(), group_index=index)
    with pytest.raises(
        RuntimeError, match="argument 'quant_offset' must be None for dynamic quantization"
    ):
        torch_npu.npu_dequant_swiglu_quant(x, quant_offset=make(1, 64), quant_mode=1)
    with pytest.raises(
        RuntimeError, match="argument 'activation_scale' must be None for 'x' of torch.float16"
    ):
        torch_npu.npu_dequant_swiglu_quant(x.half(), activation_scale=make(4, 1))
    with pytest.raises(
        RuntimeError, match="argument 'quant_scale' must be of dtype torch.float32, .*float16"
    ):
        torch_npu.npu_dequant_swiglu_quant(x, quant_scale=make(1, 64, dtype=torch.float16))


@pytest.mark.family("A2")
def test_bad_values():
    x = make(4, 16, dtype=torch.float16)
    for name, value, text in [
        ("quant_mode", 2, "0 or 1"),
        ("swiglu_mode", 3, "0, 1 or 2"),
        ("clamp_limit", 0.0, "positive and finite"),
        ("glu_alpha", plain.INF, "finite"),
        ("glu_bias", plain.NAN, "finite"),
        ("dst_type", 291, "the type int8"),
        ("round_mode", 1, "None or 0"),
        ("activate_dim", 0, "None, -1 or 1"),
    ]:
        with pytest.raises(RuntimeError, match=f"argument '{name}' must be {text}, but received"):
            torch_npu.npu_dequant_swiglu_quant(x, **{name: value})


@pytest.mark.family("A2")
def test_bad_shapes():
    with pytest.raises(RuntimeError, match=r"argument 'x' must be even in dimension 1.*\(4, 15\)"):
        torch_npu.npu_dequant_swiglu_quant(make(4, 15, dtype=torch.float16))
    with pytest.raises(
        RuntimeError,
        match="argument 'x' must be of a half last dimension up to 10496, divisible by 32",
    ):
        torch_npu.npu_dequant_swiglu_quant(
            make(4, 32, dtype=torch.bfloat16), group_index=plain.npu([4], torch.int64)
        )
