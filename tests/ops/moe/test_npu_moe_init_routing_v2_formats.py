"""npu_moe_init_routing_v2 in Ascend 950's formats: elements against the nearest of all values."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.moe.loops import init_routing_v2, npu
from tests.ops.support import make

N, K, E = 3, 2, 4
EXPERTS = [[0, 3], [-1, 0], [2, 3]]
E5M2, E4M3 = torch.float8_e5m2, torch.float8_e4m3fn


def run(x, **options):
    with on("A5"):
        return torch_npu.npu_moe_init_routing_v2(
            x,
            npu(EXPERTS),
            expert_num=E,
            expert_tokens_num_flag=True,
            expert_tokens_num_type=1,
            **options,
        )


def expected_rows(x):
    """The rows of the pairs that take part, in float64."""
    pairs = [p for p in init_routing_v2(EXPERTS, 0, E)[0] if p >= 0]
    return [x.cpu().double()[p // K].tolist() for p in pairs]


def float8_values(dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).double().tolist()
    return {c: v for c, v in enumerate(codes) if math.isfinite(v) and c < 128}


def nearest(value, grid, away=False):
    """The code whose magnitude is nearest to |value|; halves to the even code, or away from zero."""

    def rank(item):
        code, magnitude = item
        tie = -magnitude if away else code % 2
        return (abs(abs(value) - magnitude), tie)

    return min(grid.items(), key=rank)[0]


def hifloat8_values():
    """Bit by bit from the format's table: prefix, exponent with sign and hidden one, mantissa."""
    values = {0: 0.0} | {m: 2.0 ** (m - 23) for m in range(1, 8)}
    for prefix, width, fraction in (
        ("11", 4, 1),
        ("10", 3, 2),
        ("01", 2, 3),
        ("001", 1, 3),
        ("0001", 0, 3),
    ):
        for e in range(1 << width):
            for m in range(1 << fraction):
                bits = (
                    prefix + (format(e, f"0{width}b") if width else "") + format(m, f"0{fraction}b")
                )
                field = format(e, f"0{width}b") if width else ""
                power = int("1" + field[1:], 2) if width else 0
                power = -power if field[:1] == "1" else power
                values[int(bits, 2)] = 2.0**power * (1 + m / (1 << fraction))
    del values[0x6F]  # infinity
    return values


def stored(value, grid, away=False):
    code = nearest(value, grid, away)
    return code + 128 if value < 0 and (code or not away) else code


def power_above(ratio):
    """The smallest n with 2**n >= ratio."""
    n = math.frexp(ratio)[1]
    return n - 1 if 2.0 ** (n - 1) >= ratio else n


def truncated(value):
    """A magnitude as a bfloat16 without rounding."""
    bits = torch.tensor(value, dtype=torch.float32).view(torch.int32) & ~0xFFFF
    return float(bits.view(torch.float32))


@pytest.mark.parametrize("mode,dtype,width", [
    (2, E5M2, 32), (3, E4M3, 32), (16, E5M2, 32), (17, E4M3, 32),
    (4, E5M2, 128), (5, E4M3, 128), (14, E5M2, 128), (15, E4M3, 128),
])  # fmt: skip
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_scales_that_are_powers_of_two(mode, dtype, width, kind):
    columns = 72 if width == 32 else 150
    x = make(N, columns, dtype=kind, low=-5, high=5)
    x[1, :width] = 0
    x[2, :width] *= 1e-6
    out, _, _, scales = run(x, quant_mode=mode)
    grid, top = float8_values(dtype), float(torch.finfo(dtype).max)
    assert out.dtype == dtype
    blocks = -(-columns // width)
    assert scales.shape == (N * K, blocks + blocks % 2 if width == 32 else blocks)
    raw = scales.cpu().view(torch.uint8) if width == 32 else scales.cpu()
    codes = out.cpu().view(torch.uint8)
    for r, row in enumerate(expected_rows(x)):
        for b in range(blocks):
            part = row[b * width : (b + 1) * width]
            sizes = [
                abs(v) if kind is torch.bfloat16 or width == 128 else truncated(abs(v))
                for v in part
            ]
            amax = max([*sizes, 1e-4] if mode >= 14 else sizes)
            power = max(power_above(float(torch.tensor(amax) / top)), -126) if amax else None
            if width == 32:
                assert int(raw[r, b]) == (0 if power is None else power + 127)
            else:
                assert float(raw[r, b]) == (0.0 if power is None else 2.0**power)
            want = [0 if power is None else stored(min(v / 2.0**power, top), grid) for v in part]
            got = codes[r, b * width : b * width + len(part)].tolist()
            assert [g % 128 for g in got] == [w % 128 for w in want]
            assert all(g == w for g, w, v in zip(got, want, part, strict=True) if v)


@pytest.mark.parametrize("mode,dtype", [(11, E5M2), (12, E4M3)])
def test_blocks_of_128(mode, dtype):
    x = make(N, 150, dtype=torch.bfloat16, low=-5, high=5)
    x[2, :128] = 0
    out, _, _, scales = run(x, quant_mode=mode)
    top = float(torch.finfo(dtype).max)
    assert out.dtype == dtype and scales.shape == (N * K, 1, 2) and scales.dtype == torch.float32
    for r, row in enumerate(expected_rows(x)):
        for b in range(2):
            part = torch.tensor(row[b * 128 : (b + 1) * 128], dtype=torch.float32)
            scale = part.abs().max() / top
            assert scales[r, 0, b].item() == scale.item()
            want = (part / scale).clamp(-top, top).to(dtype) if scale else torch.zeros_like(part)
            assert torch.equal(out[r, b * 128 : b * 128 + len(part)].cpu().float(), want.float())


@pytest.mark.parametrize("mode", [6, 7, 8])
def test_hifloat8(mode):
    x = make(N, 14, dtype=torch.float16, low=-9, high=9)
    x[0, :4] = torch.tensor([1.0625, -1.0625, 3e-5, 0.0])
    out, _, _, scales = run(
        x, quant_mode=mode, scale=npu([300.0], torch.float32) if mode == 7 else None
    )
    grid = hifloat8_values()
    assert out.dtype == torch.uint8 and len(grid) == 127 and max(grid.values()) == 32768
    for r, row in enumerate(expected_rows(x)):
        values = torch.tensor(row, dtype=torch.float32)
        if mode == 7:
            values = values * 300
        if mode == 8:
            scale = values.abs().max() / 32768
            assert scales[r].item() == scale.item()
            values = values / scale
        want = [stored(v, grid, away=True) for v in values.tolist()]
        assert out[r].tolist() == want


def test_mxfp4():
    x = make(N, 40, dtype=torch.bfloat16, low=-5, high=5)
    x[1, :32] = 0
    out, _, _, scales = run(x, quant_mode=9)
    grid = dict(enumerate((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)))
    assert out.dtype == torch.uint8 and out.shape == (N * K, 20) and scales.shape == (N * K, 1, 2)
    raw = scales.cpu().view(torch.uint8)
    for r, row in enumerate(expected_rows(x)):
        nibbles = [n for byte in out[r].tolist() for n in (byte & 15, byte >> 4)]
        for b, part in enumerate((row[:32], row[32:])):
            amax = max(map(abs, part))
            power = math.frexp(amax)[1] - 1 - 2 if amax else -127
            assert int(raw[r, 0, b]) == power + 127
            want = [nearest(v / 2.0**power, grid) if amax else 0 for v in part]
            got = nibbles[b * 32 : b * 32 + len(part)]
            assert [g % 8 for g in got] == want
            assert all(g >= 8 for g, v in zip(got, part, strict=True) if v < 0)


@pytest.mark.parametrize("smooth", [False, True])
def test_dynamic_int4(smooth):
    x = make(N, 6, low=-5, high=5)
    scale = make(1, 6, low=1, high=3) if smooth else None
    code = torch_npu._dtypes.CODES["int4"]
    out, _, _, scales = run(x, quant_mode=13, scale=scale, x_dtype=code)
    assert out.dtype == torch.uint8 and out.shape == (N * K, 3)
    for r, row in enumerate(expected_rows(x)):
        values = torch.tensor(row, dtype=torch.float32) * (scale.cpu()[0] if smooth else 1)
        found = values.abs().max() / 7
        want = [round(v) % 16 for v in (values / found).tolist()]
        assert scales[r].item() == found.item()
        assert [n for byte in out[r].tolist() for n in (byte & 15, byte >> 4)] == want


@pytest.mark.parametrize("dtype", [E5M2, E4M3])
def test_float8_rows_move_as_they_are(dtype):
    x = make(N, 70, low=-5, high=5).to(dtype)
    scale = make(N, 2, 2, dtype=torch.uint8, low=0, high=255).view(torch.float8_e8m0fnu)
    out, _, _, scales = run(x, scale=scale)
    pairs = [p // K for p in init_routing_v2(EXPERTS, 0, E)[0] if p >= 0]
    assert out.dtype == dtype and scales.dtype == torch.float8_e8m0fnu
    same = out.cpu().view(torch.uint8)[: len(pairs)], x.cpu().view(torch.uint8)[pairs]
    assert torch.equal(*same)
    same = scales.cpu().view(torch.uint8)[: len(pairs)], scale.cpu().view(torch.uint8)[pairs]
    assert torch.equal(*same)


@pytest.mark.parametrize("name", ["hifloat8", "float4_e2m1fn_x2"])
def test_coded_rows_move_as_they_are(name):
    x = make(N, 8, dtype=torch.uint8, low=0, high=256)
    out, _, _, _ = run(x, x_dtype=torch_npu._dtypes.CODES[name])
    pairs = [p // K for p in init_routing_v2(EXPERTS, 0, E)[0] if p >= 0]
    assert torch.equal(out.cpu()[: len(pairs)], x.cpu()[pairs])


@pytest.mark.parametrize(
    "options,message",
    [
        ({"quant_mode": 10}, "'quant_mode' must be .* but received 10"),
        ({"quant_mode": 7}, "'scale' must be given with quant_mode=7"),
        ({"quant_mode": 2, "dtype": torch.float32}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        ({"quant_mode": 13, "dtype": torch.float16}, "'x' must be of dtype torch.float32 or torch.bfloat16"),
        ({"quant_mode": 13, "x_dtype": 290}, "'x_dtype' must be torch_npu.int4 or None when quant_mode=13"),
        ({"quant_mode": 1, "x_dtype": 285}, "'x_dtype' must be int4 only with quant_mode=13"),
        ({"quant_mode": 13, "columns": 7}, "'x' must be of an even number of columns, but received 7"),
        ({"quant_mode": 3, "drop_pad_mode": 1, "expert_capacity": 1}, "'quant_mode' must be -1 with drop"),
    ],
)  # fmt: skip
def test_bad_arguments(options, message):
    options = dict(options)
    x = make(N, options.pop("columns", 8), dtype=options.pop("dtype", torch.bfloat16))
    with pytest.raises(RuntimeError, match=message):
        run(x, **options)
