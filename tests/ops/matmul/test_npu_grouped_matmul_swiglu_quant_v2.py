"""npu_grouped_matmul_swiglu_quant_v2 and npu_grouped_matmul_swiglu_quant against fp64, group by group."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.matmul.eights import E8M0, HIFLOAT8, eights, hifloats, powers
from tests.ops.norm.quantized import rounds_to
from tests.ops.quant import mx, plain
from tests.ops.support import make

WORDS = {"dtype": torch.int32, "low": -(2**31), "high": 2**31 - 1}


def ints(*shape, seed=0):
    return make(*shape, dtype=torch.int8, low=-128, high=128, seed=seed)


def parts(ends):
    start = 0
    for expert, end in enumerate(ends):
        yield expert, slice(start, end)
        start = end


def swiglu(c):
    a, b = c.chunk(2, -1)
    return a / (1 + (-a).exp()) * b


def compare(q, scale, hidden, top=127.0):
    """Rows of int8 and their scales."""
    want = hidden.abs().amax(-1) / top
    torch.testing.assert_close(scale.cpu().double(), want, rtol=1e-4, atol=1e-12)
    divisor = torch.where(want == 0, 1.0, want)
    rounds_to(q, hidden / divisor[:, None], slack=0.02)


def hidden_of(x, weight, scale, tokens, ends, extra=None, smooth=None):
    out = torch.zeros(len(x), weight.shape[-1] // 2, dtype=torch.float64)
    for e, rows in parts(ends):
        c = x[rows] @ weight[e] * scale[e]
        c = c if extra is None else c + extra[e]
        h = swiglu(c * tokens[rows, None])
        out[rows] = h if smooth is None else h * smooth[e]
    return out


def middle(chip):
    """Ascend950 refuses the default of dequant_dtype."""
    return {"dequant_dtype": torch.float32} if chip == "A5" else {}


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chip", ["A2", "A5"])
def test_int8(kind, dtype, chip):
    x, w = ints(9, 40), ints(3, 40, 16, seed=1)
    scale, tokens = make(3, 16, dtype=dtype, low=0, high=0.01), make(9, low=0, high=0.01)
    ends = (4, 4, 8)
    given = torch.tensor(ends if kind == 0 else (4, 0, 4)).npu()
    with on(chip):
        q, s = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x, [w], [scale], tokens, given, group_list_type=kind, **middle(chip)
        )
    want = hidden_of(*(t.cpu().double() for t in (x, w, scale, tokens)), ends)
    assert q.dtype == torch.int8 and q.shape == (9, 8) and not q[8].any() and s[8] == 0
    compare(q, s, want)


def test_first_version():
    x, w = ints(9, 40), ints(2, 40, 16, seed=1)
    scale, tokens = make(2, 16, low=0, high=0.01), make(9, low=0, high=0.01)
    ends = torch.tensor([4, 9]).npu()
    q, s, offset = torch_npu.npu_grouped_matmul_swiglu_quant(x, w, ends, scale, tokens)
    compare(q, s, hidden_of(*(t.cpu().double() for t in (x, w, scale, tokens)), (4, 9)))
    assert offset.shape == () and offset.dtype == torch.float32
    with pytest.raises(NotImplementedError, match="'bias' must be left at None"):
        torch_npu.npu_grouped_matmul_swiglu_quant(x, w, ends, scale, tokens, bias=tokens)
    with pytest.raises(RuntimeError, match="'group_list' must be of dtype torch.int64"):
        torch_npu.npu_grouped_matmul_swiglu_quant(x, w, ends.int(), scale, tokens)
    with pytest.raises(RuntimeError, match="'weight' must be of depth 40, as 'x', but received 39"):
        torch_npu.npu_grouped_matmul_swiglu_quant(x, w[:, :39], ends, scale, tokens)
    with on("A5"), pytest.raises(NotImplementedError, match="'device' must be of the family A2"):
        torch_npu.npu_grouped_matmul_swiglu_quant(x, w, ends, scale, tokens)


def test_first_version_with_blocks_written_out():
    """int8 and int4 weights as NZ blocks, (E, N / c, K / 16, 16, c), equal the matrices."""
    x, w = ints(9, 32), ints(2, 32, 64, seed=1)
    scale, tokens = make(2, 64, low=0, high=0.01), make(9, low=0, high=0.01)
    ends = torch.tensor([4, 9]).npu()
    blocks = w.view(2, 2, 16, 2, 32).permute(0, 3, 1, 2, 4).contiguous()
    plain = torch_npu.npu_grouped_matmul_swiglu_quant(x, w, ends, scale, tokens)
    found = torch_npu.npu_grouped_matmul_swiglu_quant(x, blocks, ends, scale, tokens)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    fours = make(2, 32, 16, **WORDS)
    packed = torch_npu.npu_trans_quant_param(make(256, low=0.01)).view(2, 128)
    args = (ends, packed, tokens)
    blocks = fours.view(2, 2, 16, 2, 8).permute(0, 3, 1, 2, 4).contiguous()
    bias = make(2, 128)
    plain = torch_npu.npu_grouped_matmul_swiglu_quant(x, fours, *args, bias=bias)
    found = torch_npu.npu_grouped_matmul_swiglu_quant(x, blocks, *args, bias=bias)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_a_list_of_fewer_groups():
    x, w = ints(9, 40), ints(3, 40, 16, seed=1)
    scale, tokens = make(3, 16, low=0, high=0.01), make(9, low=0, high=0.01)
    first = torch.tensor([4, 7]).npu()
    want = hidden_of(*(t.cpu().double() for t in (x, w, scale, tokens)), (4, 7))
    q, s = torch_npu.npu_grouped_matmul_swiglu_quant_v2(x, [w], [scale], tokens, first)
    compare(q, s, want)
    q, s, _ = torch_npu.npu_grouped_matmul_swiglu_quant(x, w, first, scale, tokens)
    compare(q, s, want)


@pytest.mark.parametrize("groups", [None, 2])
def test_first_version_by_int4(groups):
    x, w = ints(7, 32), make(2, 32, 2, **WORDS)
    shape = (2, 16) if groups is None else (2, groups, 16)
    packed = torch_npu.npu_trans_quant_param(make(32 * (groups or 1), low=0.01)).reshape(shape)
    assist, tokens, ends = make(2, 16), make(7, low=0, high=0.1), torch.tensor([3, 7]).npu()
    q, s, _ = torch_npu.npu_grouped_matmul_swiglu_quant(x, w, ends, packed, tokens, bias=assist)
    mode = {"weight_assist_matrix": [assist], "dequant_mode": 0 if groups is None else 1}
    want = torch_npu.npu_grouped_matmul_swiglu_quant_v2(x, [w], [packed], tokens, ends, **mode)
    torch.testing.assert_close(s, want[1], rtol=1e-3, atol=0)
    assert (q.int() - want[0].int()).abs().max() <= 1
    with pytest.raises(RuntimeError, match="'bias' must be given with int4 weights"):
        torch_npu.npu_grouped_matmul_swiglu_quant(x, w, ends, packed, tokens)


@pytest.mark.parametrize("smooth", [None, (2, 8), (2,)])
@pytest.mark.parametrize("packed", [False, True])
def test_int4(smooth, packed):
    x, w = make(7, 4, **WORDS), make(2, 32, 2, **WORDS)
    scale, tokens = make(2, 16, low=0.01, high=0.1), make(7, low=0, high=0.1)
    scale = (scale.view(torch.int32) & ~0x1FFF).view(torch.float32)
    given = torch_npu.npu_trans_quant_param(scale.flatten()).reshape(2, 16) if packed else scale
    factor = None if smooth is None else make(*smooth, low=0.5, high=2)
    q, s = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        x, [w], [given], tokens, torch.tensor([3, 7]).npu(), smooth_scale=factor
    )
    left, right = plain.nibbles(x).reshape(7, 32), plain.nibbles(w).reshape(2, 32, 16)
    wide = [t.cpu().double() for t in (left, right, scale, tokens)]
    wide_factor = None if factor is None else factor.cpu().double().reshape(2, -1)
    compare(q, s, hidden_of(*wide, (3, 7), smooth=wide_factor))


@pytest.mark.parametrize("groups", [None, 2])
def test_int8_by_int4(groups):
    x, w = ints(7, 32), make(2, 32, 2, **WORDS)
    shape = (2, 16) if groups is None else (2, groups, 16)
    values = make(*shape, low=0.5, high=2) * 2.0**-6
    exact = (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    packed = torch_npu.npu_trans_quant_param(exact.reshape(-1)).reshape(shape)
    assist, tokens = make(2, 16), make(7, low=0, high=0.1)
    q, s = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        x,
        [w],
        [packed],
        tokens,
        torch.tensor([3, 7]).npu(),
        weight_assist_matrix=[assist],
        dequant_mode=0 if groups is None else 1,
    )
    left, right = x.cpu().double() - 8, plain.nibbles(w).reshape(2, 32, 16).double()
    factors = exact.cpu().double().reshape(2, -1, 16).repeat_interleave(32 // (groups or 1), 1)
    wide = (left, right * factors, torch.ones(2, 1), tokens.cpu().double())
    compare(q, s, hidden_of(*wide, (3, 7), extra=assist.cpu().double()))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dst", [mx.E4M3, mx.E5M2])
@pytest.mark.parametrize("apart", [False, True])
def test_microscaling(swapped, dst, apart):
    (x, a), (w, b) = eights(5, 70), eights(*((2, 124, 70) if swapped else (2, 70, 124)), seed=1)
    w, b = (w.mT, b.mT) if swapped else (w, b)
    (s1, p1), (s2, p2) = powers(5, 2, 2), powers(2, 2, 124, 2, seed=1)
    with on("A5"):
        q, scale = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x,
            [w[0], w[1]] if apart else [w],
            [s2[0], s2[1]] if apart else [s2],
            s1,
            torch.tensor([2, 4]).npu(),
            dequant_mode=2,
            quant_mode=2,
            dequant_dtype=torch.float32,
            quant_dtype=dst,
            weight_scale_dtype=E8M0,
            x_scale_dtype=E8M0,
        )
    spread = torch.stack([p1[:, k // 64, k // 32 % 2] for k in range(70)], 1)
    columns = torch.stack([p2[:, k // 64, :, k // 32 % 2] for k in range(70)], 1)
    want = torch.zeros(5, 62, dtype=torch.float64)
    for e, rows in parts((2, 4)):
        want[rows] = swiglu((a * spread)[rows] @ (b[e] * columns[e]))
    values, bytes_ = mx.quantize(want.float().double().numpy(), dst)
    assert scale.dtype == torch.float8_e8m0fnu and scale.shape == (5, 1, 2)
    assert np.array_equal(scale.cpu().view(torch.uint8).numpy(), bytes_)
    got = mx.decode(q, dst)
    assert (got == values).mean() > 0.97
    assert (np.abs(got - values) <= np.abs(values) / 4 + 2.0**-9).all()


def test_blocks_of_nz_written_out():
    """(E, N / 32, K / 16, 16, 32), as programs permute int8 weights by hand; torch.float32 is the default's name."""
    x, w, scale, tokens = ints(6, 32), ints(2, 32, 64), make(2, 64, low=0), make(6, low=0)
    blocks = w.reshape(2, 2, 16, 2, 32).permute(0, 3, 1, 2, 4).contiguous()
    ends = torch.tensor([2, 6]).npu()
    whole = torch_npu.npu_grouped_matmul_swiglu_quant_v2(x, [w], [scale], tokens, ends)
    found = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        x, [blocks], [scale], tokens, ends, dequant_dtype=torch.float32
    )
    for mine, right in zip(found, whole, strict=True):
        assert torch.equal(mine.cpu(), right.cpu())
    with pytest.raises(RuntimeError, match=r"'weight' must be of shape \(\*, \*, \*, 16, \*\)"):
        torch_npu.npu_grouped_matmul_swiglu_quant_v2(x, [blocks.mT], [scale], tokens, ends)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch before 2.8")
def test_four_bit_results_have_their_own_dtype():
    x = make(4, 32, dtype=torch.uint8, low=0, high=256)
    w = make(1, 64, 64, dtype=torch.uint8, low=0, high=256)
    s1 = make(4, 1, 2, dtype=torch.uint8, low=120, high=130)
    s2 = make(1, 1, 128, 2, dtype=torch.uint8, low=120, high=130)
    code = torch_npu.float4_e2m1fn_x2
    with on("A5"):
        q, scale = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x, [w], [s2], s1, torch.tensor([4]).npu(), dequant_mode=2, quant_mode=2,
            dequant_dtype=torch.float32, quant_dtype=code, x_dtype=code, weight_dtype=code,
            weight_scale_dtype=E8M0, x_scale_dtype=E8M0,
        )  # fmt: skip
    assert q.dtype == torch.float4_e2m1fn_x2 and q.shape == (4, 32)
    assert scale.dtype == torch.float8_e8m0fnu and scale.shape == (4, 1, 2)


def test_hifloat8_and_float8_by_rows():
    (x, a), (w, b) = hifloats(5, 20), hifloats(2, 20, 8, seed=3)
    scale, tokens = make(2, 8, low=0), make(5, low=0)
    ends = torch.tensor([2, 5]).npu()
    want = hidden_of(a, b, scale.cpu().double(), tokens.cpu().double(), (2, 5))
    with on("A5"):
        q, s = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x, [w], [scale], tokens, ends, x_dtype=HIFLOAT8, weight_dtype=HIFLOAT8,
            quant_dtype=292, **middle("A5"),
        )  # fmt: skip
    torch.testing.assert_close(s.cpu().double(), want.abs().amax(-1) / 448, rtol=1e-4, atol=0)
    back = q.cpu().double() * s.cpu().double()[:, None]
    assert ((back - want).abs() <= want.abs() / 16 + want.abs().amax(-1, True) * 2e-5).all()


def test_bad_arguments():
    x, w, scale, tokens = ints(6, 16), ints(2, 16, 8), make(2, 8), make(6)
    ends = torch.tensor([2, 6]).npu()
    good = (x, [w], [scale], tokens, ends)

    def replaced(place, value):
        return [*good[:place], value, *good[place + 1 :]]

    for args, options, text in [
        (replaced(1, [w, w]), {}, "'weight' must be a list of one tensor, but received 2"),
        (replaced(1, [w[:, :15]]), {}, "'weight' must be of depth 16, as 'x', but received 15"),
        (replaced(2, [scale[:, :7]]), {}, r"'weight_scale' must be of shape \(2, 8\)"),
        (replaced(3, tokens[:3]), {}, r"'x_scale' must be of shape \(6\)"),
        (replaced(4, ends.repeat(2)), {}, "'group_list' must be of at most 2 numbers, the experts"),
        (replaced(2, [scale[:, None]]), {}, r"'weight_scale' must be of shape \(2, 8\)"),
        (good, {"quant_mode": 1}, "'quant_mode' must be 0, but received 1"),
        (good, {"group_list_type": 2}, "'group_list_type' must be None, 0 or 1"),
        (good, {"quant_dtype": 292}, "'quant_dtype' must be None, 0 or 1"),
        (good, {"x_dtype": 290}, "'weight_dtype' must be given if and only if 'x_dtype' is"),
        (replaced(1, [w.to(torch.float8_e4m3fn)]), {}, "'weight' must be of a form among a8w8"),
        (replaced(4, torch.tensor([2, 7]).npu()), {}, "'group_list' must be such that the groups"),
        (
            replaced(4, torch.tensor([4, 2]).npu()),
            {},
            "'group_list' must be non-negative and non-dec",
        ),
    ]:
        match = "npu_grouped_matmul_swiglu_quant_v2: argument " + text
        with pytest.raises(RuntimeError, match=match):
            torch_npu.npu_grouped_matmul_swiglu_quant_v2(*args, **options)
    for name in ("bias", "smooth_scale"):
        with pytest.raises(NotImplementedError, match=f"'{name}' must be left at None"):
            torch_npu.npu_grouped_matmul_swiglu_quant_v2(*good, **{name: tokens})


def test_microscaling_of_4_bit_weights():
    (x, a), (s1, p1) = eights(5, 64), powers(5, 1, 2)
    w = make(2, 128, 32, dtype=torch.uint8, low=0, high=256, seed=2).mT
    s2, p2 = powers(2, 1, 128, 2, seed=1)
    given = {
        "dequant_mode": 2, "quant_mode": 2, "dequant_dtype": torch.float32, "quant_dtype": mx.E4M3,
        "weight_dtype": 296, "weight_scale_dtype": E8M0, "x_scale_dtype": E8M0,
    }  # fmt: skip
    ends = torch.tensor([2, 5]).npu()
    with on("A5"):
        q, _ = torch_npu.npu_grouped_matmul_swiglu_quant_v2(x, [w], [s2], s1, ends, **given)
        with pytest.raises(RuntimeError, match="'weight' must be transposed beside 8-bit floats"):
            plain_ = make(2, 64, 64, dtype=torch.uint8, low=0, high=256)
            torch_npu.npu_grouped_matmul_swiglu_quant_v2(x, [plain_], [s2], s1, ends, **given)
    b = torch.from_numpy(mx.decode(w.mT.contiguous(), mx.E2M1)).mT
    rows = torch.stack([p1[:, 0, k // 32] for k in range(64)], 1)
    columns = torch.stack([p2[:, 0, :, k // 32] for k in range(64)], 1)
    want = torch.zeros(5, 64, dtype=torch.float64)
    for e, part in parts((2, 5)):
        want[part] = swiglu((a * rows)[part] @ (b[e] * columns[e]))
    values, _ = mx.quantize(want.float().double().numpy(), mx.E4M3)
    assert (mx.decode(q, mx.E4M3) == values).mean() > 0.97


def test_rules_of_ascend950():
    x, w, scale, tokens = ints(6, 16), ints(2, 16, 8), make(2, 8), make(6)
    good = (x, [w], [scale], tokens, torch.tensor([2, 6]).npu())
    with on("A5"):
        with pytest.raises(RuntimeError, match="'dequant_dtype' must be the type float32, float16"):
            torch_npu.npu_grouped_matmul_swiglu_quant_v2(*good)
        with pytest.raises(NotImplementedError, match="'tuning_config' must be left at None"):
            torch_npu.npu_grouped_matmul_swiglu_quant_v2(*good, **middle("A5"), tuning_config=[3])


def test_int8_by_int4_needs_its_matrix():
    x, w, tokens = ints(7, 32), make(2, 32, 2, **WORDS), make(7)
    packed = torch_npu.npu_trans_quant_param(make(32, low=0.01)).reshape(2, 16)
    args = (x, [w], [packed], tokens, torch.tensor([3, 7]).npu())
    with pytest.raises(RuntimeError, match="'weight_assist_matrix' must be given for int8 by int4"):
        torch_npu.npu_grouped_matmul_swiglu_quant_v2(*args)
    with pytest.raises(RuntimeError, match="'dequant_mode' must be 0, but received 1"):
        extra = {"weight_assist_matrix": [make(2, 16)], "dequant_mode": 1}
        torch_npu.npu_grouped_matmul_swiglu_quant_v2(*args, **extra)
