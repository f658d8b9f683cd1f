"""Packing and rounding helpers: every byte, every edge."""

import pytest
import torch

from tests.ops.quant import plain
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._packing import pack_int4, unpack_int4
from torch_npu.ops._shared._rounding import ROUND_MODES, saturate


def test_all_bytes():
    values = torch.arange(256, dtype=torch.int64)
    for dtype in (torch.uint8, torch.int8):
        packed = values.to(dtype)
        assert torch.equal(unpack_int4(packed).long(), plain.nibbles(packed).reshape(-1))
        assert torch.equal(pack_int4(unpack_int4(packed), dtype), packed)


def test_words():
    packed = torch.randint(-(2**31), 2**31, (3, 5, 7)).to(torch.int32)
    assert torch.equal(unpack_int4(packed).long(), plain.nibbles(packed))
    assert torch.equal(pack_int4(plain.nibbles(packed)), packed)


def test_order_within_a_word():
    assert pack_int4(torch.tensor([1, 2, 3, 4, 5, 6, 7, -8])).item() == 0x87654321 - 2**32


def test_non_contiguous_and_empty():
    packed = torch.randint(-128, 128, (6, 4)).to(torch.int8)
    assert torch.equal(unpack_int4(packed.t()).long(), plain.nibbles(packed.t().contiguous()))
    assert unpack_int4(torch.zeros(0, 4, dtype=torch.int32)).shape == (0, 32)
    assert pack_int4(torch.zeros(0, 16, dtype=torch.int8)).shape == (0, 2)


def test_only_integers_pack():
    with pytest.raises(TypeError, match="packs integers, not torch.float32"):
        pack_int4(torch.zeros(8))
    with pytest.raises(TypeError, match="reads int32, int8 or uint8, not torch.int64"):
        unpack_int4(torch.zeros(8, dtype=torch.int64))


EDGES = [
    plain.NAN,
    plain.INF,
    -plain.INF,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    126.5,
    127.5,
    -128.5,
    3e9,
    -3e9,
    7.5,
    -8.5,
]


@pytest.mark.parametrize(
    "dtype,low,high",
    [
        (torch.int8, -128, 127),
        (torch.uint8, 0, 255),
        (torch.int16, -32768, 32767),
        (torch.int32, -(2**31), 2**31 - 1),
        (torch.quint4x2, -8, 7),
    ],
)
def test_saturate_integers(dtype, low, high):
    x = torch.tensor(EDGES)
    plain.same(saturate(x, dtype), plain.whole(x.numpy(), low, high))


def test_rounding_modes():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997, 2.25, -2.75])
    expected = {
        "rint": [0, 2, 2, 0, -2, 0, 2, -3],
        "round": [1, 2, 3, -1, -3, 0, 2, -3],
        "floor": [0, 1, 2, -1, -3, 0, 2, -3],
        "ceil": [1, 2, 3, 0, -2, 1, 3, -2],
        "trunc": [0, 1, 2, 0, -2, 0, 2, -2],
    }
    assert set(expected) == set(ROUND_MODES)
    for mode, values in expected.items():
        assert saturate(x, torch.int8, mode).tolist() == values, mode


@pytest.mark.parametrize("dtype,top", [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)])
def test_saturate_float8(dtype, top):
    y = saturate(torch.tensor([plain.NAN, plain.INF, -plain.INF, 1e9, -1e9, 0.3125]), dtype).float()
    assert y[0].isnan()
    assert y[1:].tolist() == [top, -top, top, -top, 0.3125]


def hifloat8(byte):
    """The value of a byte, read off its bits as text: sign, prefix, exponent, mantissa."""
    bits = f"{byte:08b}"
    sign, rest = (-1 if bits[0] == "1" else 1), bits[1:]
    if rest == "0000000":
        return plain.NAN if sign < 0 else 0.0
    if rest == "1101111":
        return sign * plain.INF
    prefix, width = next((p, w) for p, w in PREFIXES if rest.startswith(p))
    rest = rest[len(prefix) :]
    if width is None:
        return sign * 2.0 ** (int(rest, 2) - 23)
    exponent, fraction = rest[:width], rest[width:]
    power = 0
    if width:
        power = int("1" + exponent[1:], 2) * (-1 if exponent[0] == "1" else 1)
    return sign * (1 + int(fraction, 2) / 2 ** len(fraction)) * 2.0**power


PREFIXES = (("11", 4), ("10", 3), ("01", 2), ("001", 1), ("0001", 0), ("0000", None))


def test_hifloat8_all_bytes():
    expected = torch.tensor([hifloat8(b) for b in range(256)])
    bytes_ = torch.arange(256).to(torch.uint8)
    assert torch.equal(
        _formats.decode(bytes_, "hifloat8").nan_to_num(7e7), expected.nan_to_num(7e7)
    )
    finite = ~expected.isinf()
    assert torch.equal(_formats.encode(expected[finite], "hifloat8"), bytes_[finite])


def test_hifloat8_rounds_to_nearest_halves_away():
    grid = sorted(v for v in (hifloat8(b) for b in range(128)) if v < plain.INF)
    x = torch.cat(
        [
            torch.rand(200) * 4,
            torch.tensor([(a + b) / 2 for a, b in zip(grid, grid[1:], strict=False)]),
        ]
    )
    expected = [max(grid, key=lambda g, v=v: (-abs(g - v), g)) for v in x.tolist()]
    both = torch.cat([x, -x])
    found = _formats.decode(_formats.encode(both, "hifloat8"), "hifloat8")
    assert found.tolist() == expected + [-e if e else 0.0 for e in expected]


def test_hifloat8_saturates():
    x = torch.tensor([1e9, -1e9, plain.INF, 40000.0])
    found = _formats.decode(_formats.encode(x, "hifloat8"), "hifloat8")
    assert found.tolist() == [32768.0, -32768.0, 32768.0, 32768.0]


@pytest.mark.parametrize(
    "name,grid",
    [
        ("float4_e2m1fn_x2", [0, 0.5, 1, 1.5, 2, 3, 4, 6]),
        ("float4_e1m2fn_x2", [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]),
    ],
)
def test_float4(name, grid):
    halves = [(a + b) / 2 for a, b in zip(grid, grid[1:], strict=False)]
    x = torch.tensor(grid + halves + [100.0])
    even = [grid[i] if i % 2 == 0 else grid[i + 1] for i in range(7)]
    expected = grid + even + [grid[-1]]
    both = torch.cat([x, -x])
    packed = _formats.encode(both, name)
    assert packed.dtype == torch.uint8 and packed.numel() * 2 == both.numel()
    assert _formats.decode(packed, name).tolist() == expected + [-e for e in expected]
    assert packed[0].item() == 0x10  # the first value in the low bits
