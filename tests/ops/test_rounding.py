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
from tests.ops.quant import plain
from tests.ops.rounding import BRAIN, HALF, F, cast, integers, same, single
from tests.ops.support import make


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


@pytest.mark.parametrize("family", ["A2", "310P", "A5"])
def test_geglu_grad_multiplies_in_float16(family):
    x, dy = make(64, 64, dtype=HALF, low=-3, high=3), make(64, 32, dtype=HALF, seed=1)
    with on(family):
        gelu = torch_npu.npu_geglu(x)[1]
        dx = torch_npu.npu_geglu_grad(dy, x, gelu)
    a, b, grad = single(x)[:, :32], single(x)[:, 32:], single(dy)
    same(dx[:, :32], grad * single(gelu))
    product = torch.from_numpy(cast(grad * a, HALF))
    want = torch.ops.aten.gelu_backward(product, torch.from_numpy(b), approximate="tanh")
    same(dx[:, 32:], want.numpy())


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("family", ["A2", "A5"])
@pytest.mark.parametrize("width", [33, 256])
def test_dynamic_quant(dtype, family, width):
    x = make(300, width, dtype=dtype, low=-5, high=5)
    with on(family):
        y, scale = torch_npu.npu_dynamic_quant(x)
    a = single(x)
    high = np.abs(a).max(-1, keepdims=True)
    found = high * F(1 / F(127))
    values = a / found if family == "A5" else a * (F(127) / high)
    assert np.array_equal(scale.cpu().numpy()[:, None], found)
    assert np.array_equal(y.cpu().numpy(), integers(values))


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("width,ends,inverse", [
    (10280, None, False), (12800, None, False), (12801, None, "smooth"), (15041, None, True),
    (16328, None, True), (64, [30, 100], True),
])  # fmt: skip
def test_dynamic_quant_of_long_rows_and_groups(width, ends, inverse, smooth):
    """dynamic_quant_large_shape_opt.h and dynamic_quant_moe.h: the scale is 1 / (127 / max)."""
    x, options = make(100, width, dtype=HALF, low=-5, high=5), {}
    a = single(x)
    if ends or smooth:
        factors = make(*([len(ends)] if ends else []), width, dtype=HALF, low=1, high=2, seed=1)
        options["smooth_scales"] = factors
        a = a * (np.repeat(single(factors), np.diff([0, *ends]), 0) if ends else single(factors))
    if ends:
        options["group_index"] = torch.tensor(ends, dtype=torch.int32).npu()
    with on("A2"):
        y, scale = torch_npu.npu_dynamic_quant(x, **options)
    high = np.abs(a).max(-1, keepdims=True)
    long = smooth if inverse == "smooth" else inverse
    found = F(1) / (F(127) / high) if long else high * F(1 / F(127))
    assert np.array_equal(scale.cpu().numpy()[:, None], found)
    assert np.array_equal(y.cpu().numpy(), integers(a * (F(127) / high)))


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


@pytest.mark.family("A2")
def test_equal_values_quantize_with_the_smallest_scale():
    _, scale, _ = torch_npu.npu_dynamic_quant_asymmetric(
        make(2, 16, dtype=HALF, low=1, high=1.0001)
    )
    assert scale.tolist() == [np.float32(1e-12)] * 2


@pytest.mark.family("A2")
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


@pytest.mark.family("A2")
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


@pytest.mark.parametrize("family", ["A2", "A5"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("skips", [0, 1, 2])
def test_moe_finalize_routing(dtype, family, skips):
    """float16 before Ascend950: every operation rounds; otherwise fp32, the skips first, in order."""
    tokens, top_k, width = 5, 3, 150
    rows = make(tokens * top_k, width, dtype=dtype, high=8)
    bias, scales = make(4, width, dtype=dtype, seed=1), make(tokens, top_k, dtype=dtype, seed=2)
    skip = [make(tokens, width, dtype=dtype, seed=3 + i) for i in range(skips)] + [None] * (
        2 - skips
    )
    order = torch.randperm(tokens * top_k, dtype=torch.int32).npu()
    experts = make(tokens, top_k, dtype=torch.int32, low=0, high=4)
    with on(family):
        y = torch_npu.npu_moe_finalize_routing(
            rows, *skip, bias, scales, order, experts, drop_pad_mode=2
        )
    step = (lambda v: cast(v, HALF)) if family == "A2" and dtype == HALF else F
    places, who = order.cpu().view(tokens, top_k).numpy(), experts.cpu().numpy()
    total = None
    for each in skip[:skips]:
        total = single(each) if total is None else step(total + single(each))
    for j in range(top_k):
        term = step(single(rows)[places[:, j]] + single(bias)[who[:, j]])
        term = step(term * single(scales)[:, j : j + 1])
        total = term if total is None else step(total + term)
    same(y, total)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_token_unpermute(dtype):
    """fp32: the product with the probability, then the sum, in order; rounded once."""
    tokens, top_k, width = 6, 2, 40
    rows, probs = make(tokens * top_k, width, dtype=dtype), make(tokens, top_k, dtype=dtype, seed=1)
    order = torch.randperm(tokens * top_k, dtype=torch.int32).npu()
    y = torch_npu.npu_moe_token_unpermute(rows, order, probs)
    taken = single(rows)[order.cpu().numpy()].reshape(tokens, top_k, width)
    factors = single(probs)[..., None]
    same(y, taken[:, 0] * factors[:, 0] + taken[:, 1] * factors[:, 1])


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_scaled_masked_softmax(dtype):
    """float16: the scale and its product with the logits round; with two logits left, exp alone is not exact."""
    x = make(1, 1, 32, 32, dtype=dtype, low=-8, high=8)
    mask = torch.ones(1, 1, 32, 32, dtype=torch.bool)
    mask[..., :2] = False
    scale = 0.3
    y = torch_npu.npu_scaled_masked_softmax(x, mask.npu(), scale)
    a = single(x)[..., :2].astype(np.float64)
    if dtype == HALF:
        z = cast(a * float(np.float16(scale)), HALF).astype(np.float64)
    else:
        z = (a.astype(F) * F(scale)).astype(np.float64)
    want = 1 / (1 + np.exp(z[..., ::-1] - z))
    found = single(y)[..., :2]
    assert (cast(want, dtype) == found).mean() > 0.95
    if dtype == HALF:  # the unrounded product gives other numbers
        other = a * scale
        assert (cast(1 / (1 + np.exp(other[..., ::-1] - other)), dtype) == found).mean() < 0.8


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("bias", [False, True])
def test_quant_matmul_scales_the_sum_by_column_then_by_row(dtype, bias):
    x1, x2 = (make(*shape, dtype=torch.int8, low=-128, high=128) for shape in ((7, 64), (64, 16)))
    scale, pertoken = make(16, low=0.001, high=0.01), make(7, low=0.001, high=0.01, seed=1)
    added = make(16, low=-1, high=1, seed=2) if bias else None
    y = torch_npu.npu_quant_matmul(
        x1, x2, scale, pertoken_scale=pertoken, bias=added, output_dtype=dtype
    )
    total = (x1.cpu().int() @ x2.cpu().int()).numpy().astype(F)
    want = total * single(scale) * single(pertoken)[:, None]
    same(y, want + single(added) if bias else want)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_mrope(dtype):
    positions = torch.arange(5, dtype=torch.int32).npu()
    query, key = make(5, 64, dtype=dtype), make(5, 32, dtype=dtype, seed=1)
    table = make(16, 32, dtype=dtype, seed=2)
    y, _ = torch_npu.npu_mrope(positions, query, key, table, 32, rotary_mode="half")
    cos, sin = (single(table)[:5, None, part] for part in (slice(0, 16), slice(16, 32)))
    a, b = np.split(single(query).reshape(5, 2, 32), 2, -1)
    same(y, np.concatenate((a * cos - b * sin, b * cos + a * sin), -1))


def halves_away(values):
    return np.trunc(values.astype(np.float64) + np.copysign(0.5, values))


@pytest.mark.parametrize("dtype", [HALF, BRAIN, torch.float32])
@pytest.mark.parametrize("family", ["A2", "A5"])
def test_moe_init_routing_quant(dtype, family):
    """Static: scaled in float16. Dynamic: quotients cut to float16, halves away from zero."""
    x = make(6, 640, dtype=dtype, low=-3, high=3)
    experts = torch.arange(6, dtype=torch.int32).view(6, 1).npu()
    scale, offset = torch.tensor([30.1], device=x.device), torch.tensor([0.3], device=x.device)
    with on(family):
        static = torch_npu.npu_moe_init_routing_quant(
            x, experts, scale=scale, offset=offset, quant_mode=0, active_num=0
        )[0]
        dynamic, *_, tops = torch_npu.npu_moe_init_routing_quant(x, experts, active_num=0)
    half = single(x).astype(np.float16)
    expected = half * np.float16(30.1) + np.float16(0.3)
    assert np.array_equal(static.cpu().numpy(), integers(expected.astype(np.float32)))
    top = np.abs(single(x)).max(-1, keepdims=True) / np.float32(127)
    quotient = single(x) / top
    nearest = quotient.astype(np.float16)
    past = np.abs(nearest.astype(np.float32)) > np.abs(quotient)
    cut = np.where(past, np.nextafter(nearest, np.float16(0)), nearest).astype(np.float32)
    same(tops, top[:, 0])
    assert np.array_equal(dynamic.cpu().numpy(), halves_away(cut).astype(np.int8))


def test_moe_init_routing_quant_takes_halves_away_from_zero():
    x = torch.tensor([[127.0, 2.5, -2.5, 0.5, 1.5]], device="npu")
    experts = torch.zeros(1, 1, dtype=torch.int32, device="npu")
    assert torch_npu.npu_moe_init_routing_quant(x, experts)[0].tolist() == [[127, 3, -3, 1, 2]]


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_dequant_rope_quant_kvcache(dtype):
    """float16 rounds queries and keys, both products and the sum; values reach their cache unrounded."""
    x = make(2, 3, 3 * 32, dtype=torch.int32, low=-900, high=900)
    cos, sin = make(2, 3, 1, 32, dtype=dtype, seed=1), make(2, 3, 1, 32, dtype=dtype, seed=2)
    weight = make(96, low=0.001, high=0.01, seed=3)
    caches = [torch.zeros(2, 8, 1, 32, dtype=torch.int8, device=x.device) for _ in range(2)]
    scale = make(32, low=0.01, high=0.03, seed=4)
    q, k, _, k_cache, v_cache = torch_npu.npu_dequant_rope_quant_kvcache(
        x, cos, sin, *caches, torch.zeros(2, dtype=torch.int32, device=x.device), scale, scale,
        [32, 32, 32], weight_scale=weight, kv_output=True,
    )  # fmt: skip
    values = x.cpu().numpy().astype(F) * single(weight)
    working = np.float16 if dtype == HALF else F
    c, s = single(cos).astype(working), single(sin).astype(working)

    def rotated(part):
        part = part.astype(working)[:, :, None]
        turned = np.concatenate([-part[..., 16:], part[..., :16]], -1)
        return (part * c + turned * s).astype(F)

    same(q, rotated(values[..., :32]))
    same(k, rotated(values[..., 32:64]))
    keys = integers(rotated(values[..., 32:64]) / single(scale))
    assert np.array_equal(k_cache[:, :3].cpu().numpy(), keys)
    assert np.array_equal(
        v_cache[:, :3, 0].cpu().numpy(), integers(values[..., 64:] / single(scale))
    )


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_kronecker_quant_scales_in_float16(dtype):
    """Integers are y * (7 / clip / max), rounded to float16 and then to int4; y, too, is float16 for any dtype."""
    x = make(3, 16, 16, dtype=dtype)
    one = torch.eye(16, dtype=dtype, device=x.device)
    packed, scale = torch_npu.npu_kronecker_quant(x, one, one, clip_ratio=0.7)
    y = single(x).astype(np.float16).astype(F)
    top = np.abs(y).max((1, 2))
    same(scale, top * F(0.7) / F(7))
    scaled = (y * (F(7) / F(0.7) / top)[:, None, None]).astype(np.float16)
    want = np.clip(np.rint(scaled), -8, 7).astype(np.int8)
    assert np.array_equal(plain.nibbles(packed.cpu()).numpy().reshape(want.shape), want)
