"""`_C_ascend` npu_swiglu_group_quant: what the 8-bit floats and scales stand for, against SwiGLU in float64."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops import npu, ops, run

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
#: half of the last bit of a mantissa
RELATIVE = {E4M3: 2**-4, E5M2: 2**-3}


def hidden(x, weight=None, limit=0.0):
    a, b = x.double().chunk(2, -1)
    if limit:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    found = a * torch.sigmoid(a) * b
    return found if weight is None else found * weight.double().unsqueeze(-1)


def close(y, scale, expected, size, dtype):
    """Each value within half of its last bit, and subnormal ones within half of the smallest step."""
    factor = scale.double().flatten(1).repeat_interleave(size, 1)[:, : expected.shape[1]]
    least = factor * torch.finfo(dtype).smallest_normal * RELATIVE[dtype]
    error = (y.double() * factor - expected).abs()
    assert (error <= expected.abs() * RELATIVE[dtype] * 1.01 + least).all()


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_groups(dtype, kind):
    x, weight = torch.randn(5, 512).to(kind), torch.rand(5)
    y, scale, _ = run(ops.npu_swiglu_group_quant, x, weight, None, dtype, 1, clamp_value=0.8)
    expected = hidden(x, weight, 0.8)
    top = expected.view(5, 2, 128).abs().amax(-1) / torch.finfo(dtype).max
    torch.testing.assert_close(scale.double(), top, rtol=1e-5, atol=0)
    close(y, scale, expected, 128, dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_mx(dtype):
    x = torch.randn(2, 3, 256).bfloat16()
    y, scale, _ = run(ops.npu_swiglu_group_quant, x, None, None, dtype, 2)
    assert scale.shape == (2, 3, 2, 2)
    rounded = hidden(x).float().bfloat16().double().view(6, 128)
    exponents = torch.frexp(rounded.view(6, 4, 32).abs().amax(-1))[1] - 1
    powers = 2.0 ** (exponents - (8 if dtype == E4M3 else 15))
    assert torch.equal(scale.float().double().view(6, 4), powers.double())
    limit = torch.finfo(dtype).max * powers.repeat_interleave(32, 1)
    close(y.view(6, 128), powers, rounded.clamp(-limit, limit), 32, dtype)


@pytest.mark.parametrize("form", ["float", "power", "byte"])
def test_tokens(form):
    x = torch.randn(3, 256).bfloat16()
    options = {"round_scale": form != "float", "ue8m0_scale": form == "byte", "output_origin": True}
    y, scale, origin = run(ops.npu_swiglu_group_quant, x, None, None, E4M3, 3, **options)
    expected = hidden(x)
    assert torch.equal(origin, expected.float().bfloat16())
    top = expected.abs().amax(1, keepdim=True).clamp(min=1e-4) / 448
    if form != "float":
        top = 2.0 ** torch.ceil(torch.log2(top))
    assert scale.dtype == (torch.float8_e8m0fnu if form == "byte" else torch.float32)
    torch.testing.assert_close(scale.float().double(), top, rtol=1e-5, atol=0)
    close(y, scale.float(), expected, 128, E4M3)


def test_zeros_and_rows_of_no_group():
    x = torch.randn(4, 256).bfloat16()
    x[0] = 0
    groups = torch.tensor([1, 2])
    y, scale, _ = run(ops.npu_swiglu_group_quant, x, None, groups, E4M3, 1)
    assert y[0].float().eq(0).all() and scale[0].item() == 0
    assert y[3].float().eq(0).all() and not y[2].float().eq(0).all()
    assert not math.isnan(y.float().sum())


def test_what_does_not_fit_raises():
    (x,) = npu(torch.randn(2, 384).bfloat16())
    with pytest.raises(RuntimeError, match="'x' must be of a last dimension divisible by 256"):
        ops.npu_swiglu_group_quant(x, None, None, E4M3, 1)
    with pytest.raises(RuntimeError, match="'dst_type' must be"):
        ops.npu_swiglu_group_quant(x, None, None, torch.float16, 2)
    with pytest.raises(RuntimeError, match="'group_list_type' must be 0"):
        ops.npu_swiglu_group_quant(x, None, None, E4M3, 2, group_list_type=1)
    (wide,) = npu(torch.randn(2, 256).bfloat16())
    with pytest.raises(RuntimeError, match="'round_scale' must be True with 'ue8m0_scale'"):
        ops.npu_swiglu_group_quant(wide, None, None, E4M3, 3, ue8m0_scale=True)
