"""Where the card's kernels round: numpy walks through their published operations, bits compared.

Each emulation follows one kernel of CANN's operator sources step by step in fp32, with a cast wherever the kernel has
one; docs/rounding.md lists the sources. Reductions take their order from numpy, so rows are short, or the statistic is
taken from the operator.
"""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make

HALF, BRAIN = torch.float16, torch.bfloat16
F = np.float32


def bits(tensor):
    return tensor.cpu().contiguous().view(torch.int16)


def same(found, values):
    """The tensor has exactly these fp32 values, cast to its dtype (to nearest, halves to even)."""
    want = torch.from_numpy(np.asarray(values, dtype=F)).to(found.dtype)
    assert torch.equal(bits(found), bits(want.reshape(found.shape)))


def single(tensor):
    return tensor.cpu().float().numpy()


def cast(values, dtype):
    """fp32 values rounded to a half type and back."""
    return torch.from_numpy(np.asarray(values, dtype=F)).to(dtype).float().numpy()


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("family", ["A2", "310P", "910A", "A5"])
def test_rms_norm(dtype, family):
    if dtype == BRAIN and family in ("310P", "910A"):
        pytest.skip("no bfloat16 on this chip")
    x, gamma = make(64, 96, dtype=dtype), make(96, dtype=dtype, seed=1)
    with on(family):
        y, rstd = torch_npu.npu_rms_norm(x, gamma)
    normed = single(x) * single(rstd)
    if family == "910A":
        normed = cast(normed, dtype)
    same(y, normed * single(gamma))


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_rotary_mul(dtype):
    x = make(2, 3, 4, 64, dtype=dtype)
    cos, sin = (make(1, 3, 1, 64, dtype=dtype, seed=s) for s in (1, 2))
    y = torch_npu.npu_rotary_mul(x, cos, sin)
    a, c, s = single(x), single(cos), single(sin)
    turned = np.concatenate((-a[..., 32:], a[..., :32]), -1)
    same(y, a * c + turned * s)


@pytest.mark.parametrize("family", ["A2", "A5"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_apply_rotary_pos_emb(dtype, family):
    q, k = make(2, 3, 4, 64, dtype=dtype), make(2, 3, 1, 64, dtype=dtype, seed=3)
    cos, sin = (make(2, 3, 1, 64, dtype=dtype, seed=s) for s in (1, 2))
    a, c, s = single(q), single(cos), single(sin)
    with on(family):
        y, _ = torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin)
    left, right = a * c, np.concatenate((-a[..., 32:], a[..., :32]), -1) * s
    if family == "A2" and dtype == HALF:
        same(y, cast(left, HALF) + cast(right, HALF))
    elif family == "A2":
        exact = (left + right).astype(np.float64)
        step = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)  # between neighbors in bfloat16
        same(y, np.sign(exact) * np.floor(np.abs(exact) / step + 0.5) * step)
    else:
        same(y, left + right)


def test_halves_of_bfloat16_round_away_in_apply_rotary_pos_emb():
    device = make(1).device
    q = torch.zeros(1, 1, 1, 64, dtype=BRAIN, device=device)
    q[..., :2] = torch.tensor([1.0, 1.0078125])  # times 1.00390625: halves between neighbors
    cos = torch.full((1, 1, 1, 64), 1.00390625, device=device)
    cos = (cos * 256).to(BRAIN)
    sin = torch.zeros_like(cos)
    y, _ = torch_npu.npu_apply_rotary_pos_emb(q, q.clone(), cos, sin)
    assert y[0, 0, 0, 0].item() == 256 * float(torch.tensor(1.00390625).to(BRAIN))


@pytest.mark.parametrize("family,approximate", [("A2", 0), ("A2", 1), ("A5", 0), ("A5", 1)])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_geglu(dtype, family, approximate):
    x = make(64, 64, dtype=dtype, low=-3, high=3)
    with on(family):
        y, gelu = torch_npu.npu_geglu(x, -1, approximate)
    if dtype == HALF and (family, approximate) != ("A5", 0):
        same(y, single(gelu) * single(x)[:, :32])
        return
    doubt = (
        single(gelu) * single(x)[:, :32]
    )  # the product of the rounded GELU is another one somewhere
    assert (single(y) != cast(doubt, dtype)).any()


def integers(values):
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("family", ["A2", "310P", "A5"])
@pytest.mark.parametrize("width", [33, 256])
def test_dynamic_quant(dtype, family, width):
    if dtype == BRAIN and family == "310P":
        pytest.skip("no bfloat16 on this chip")
    x = make(300, width, dtype=dtype, low=-5, high=5)
    with on(family):
        y, scale = torch_npu.npu_dynamic_quant(x)
    a = single(x)
    high = np.abs(a).max(-1, keepdims=True)
    found = high * F(1 / F(127))
    values = a / found if family == "A5" else a * (F(127) / high)
    assert np.array_equal(scale.cpu().numpy()[:, None], found)
    assert np.array_equal(y.cpu().numpy(), integers(values))


@pytest.mark.parametrize("family", ["A2", "A5"])
def test_dynamic_quant_asymmetric(family):
    x = make(300, 64, dtype=HALF, low=-5, high=7)
    with on(family):
        y, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x)
    a = single(x)
    high, low = a.max(-1, keepdims=True), a.min(-1, keepdims=True)
    found = (high - low) * F(1 / F(255)) if family == "A5" else (high - low) / F(255)
    shift = F(127) - high / found
    values = (a / found if family == "A5" else a * (F(1) / found)) + shift
    assert np.array_equal(scale.cpu().numpy()[:, None], found)
    assert np.array_equal(offset.cpu().numpy()[:, None], shift)
    assert np.array_equal(y.cpu().numpy(), integers(values))


def test_equal_values_quantize_with_the_smallest_scale():
    _, scale, _ = torch_npu.npu_dynamic_quant_asymmetric(
        make(2, 16, dtype=HALF, low=1, high=1.0001)
    )
    assert scale.tolist() == [np.float32(1e-12)] * 2


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_rms_norm_quant_goes_through_float16(dtype):
    x, gamma, beta = (
        make(*s, dtype=dtype, seed=n) for n, s in enumerate(((200, 64), (64,), (64,)))
    )
    scale, offset = (
        make(1, dtype=dtype, low=0.01, high=0.011),
        make(1, dtype=torch.int8, low=3, high=4),
    )
    y = torch_npu.npu_rms_norm_quant(x, gamma, beta, scale, offset)
    a = single(x).astype(np.float64)
    rms = np.sqrt((a * a).mean(-1, keepdims=True) + 1e-6)
    normed = single(x) * (1 / rms).astype(F) * single(gamma) + single(beta)
    values = normed * (F(1) / single(scale)) + single(offset)
    through = integers(cast(values, HALF))
    assert (y.cpu().numpy() != through).mean() < 1e-3  # the mean's order of summation may show
    assert (y.cpu().numpy() != integers(values)).mean() > 5e-3


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("with_beta", [False, True])
def test_add_rms_norm_quant(dtype, with_beta):
    a, b = make(100, 64, dtype=dtype, low=-9, high=9), make(100, 64, dtype=dtype, seed=1)
    gamma, beta = (
        make(64, dtype=dtype, seed=2),
        make(64, dtype=dtype, seed=3) if with_beta else None,
    )
    scale = make(64, low=0.01, high=0.02)
    scale = scale if dtype == HALF else scale.to(BRAIN)
    y, _, x = torch_npu.npu_add_rms_norm_quant(a, b, gamma, scale, None, beta)
    exact = single(a) + single(b)
    same(x, exact)
    base = cast(exact, dtype) if dtype == HALF or with_beta else exact
    wide = base.astype(np.float64)
    rstd = (1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(F)
    normed = base * rstd
    product = (
        cast(cast(normed, HALF) * single(gamma), HALF) if dtype == HALF else normed * single(gamma)
    )
    values = (product if beta is None else product + single(beta)) / single(scale)
    assert (y.cpu().numpy() != integers(values)).mean() < 1e-3


def test_add_rms_norm_dynamic_quant():
    a, b, gamma = (
        make(100, 64, dtype=BRAIN),
        make(100, 64, dtype=BRAIN, seed=1),
        make(64, dtype=BRAIN),
    )
    y, _, x, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(a, b, gamma)
    exact = single(a) + single(b)
    same(x, exact)
    wide = exact.astype(np.float64)
    rstd = (1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(F)
    values = exact * rstd * single(gamma)
    factor = F(127) / np.abs(values).max(-1, keepdims=True)
    assert (y.cpu().numpy() != integers(values * factor)).mean() < 1e-3
    assert np.allclose(scale.cpu().numpy()[:, None], 1 / factor, rtol=3e-7)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_add_layer_norm_normalizes_the_exact_sum(dtype):
    a, b = make(50, 64, dtype=dtype, low=-9, high=9), make(50, 64, dtype=dtype, seed=1)
    gamma, beta = make(64, dtype=dtype, seed=2), make(64, dtype=dtype, seed=3)
    y, mean, rstd, x = torch_npu.npu_add_layer_norm(a, b, gamma, beta, 1e-5, True)
    exact = single(a) + single(b)
    same(x, exact)
    values = (exact - single(mean).reshape(-1, 1)) * single(rstd).reshape(-1, 1)
    same(y, values * single(gamma) + single(beta))


@pytest.mark.parametrize("dtype", [HALF, BRAIN, torch.float32])
def test_quantize_by_scale(dtype):
    x, scale = make(100, 64, dtype=dtype, low=-9, high=9), make(64, dtype=dtype, low=3, high=9)
    shift = make(64, dtype=dtype, low=-3, high=3, seed=1)
    y = torch_npu.npu_quantize(x, scale, shift, torch.qint8, -1, False)
    assert np.array_equal(y.cpu().numpy(), integers(single(x) * single(scale) + single(shift)))
