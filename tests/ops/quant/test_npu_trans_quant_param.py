"""npu_trans_quant_param bit by bit."""

import struct

import pytest
import torch

import torch_npu
from tests.ops.quant import plain
from tests.ops.support import make


def bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def packed(scale, offset=None, rounded=False):
    """One parameter: sign, exponent and 10 mantissa bits of the scale, the mark, nine bits of the offset."""
    word = bits(scale)
    sign, exponent, mantissa = word >> 31, (word >> 23) & 0xFF, word & 0x7FFFFF
    kept, tail = mantissa >> 13, mantissa & 0x1FFF
    if rounded and exponent == 0:
        kept = 0
    elif rounded and exponent < 255 and (tail > 0x1000 or (tail == 0x1000 and kept % 2)):
        kept += 1
        if kept == 1 << 10:
            kept, exponent = 0, exponent + 1
    out = (sign << 31) | (exponent << 23) | (kept << 13) | (1 << 46)
    if offset is not None:
        out |= (min(max(round(offset), -256), 255) % 512) << 37
    return out


def expected(scales, offsets=None, rounded=False):
    n = max(len(scales), len(offsets or []))
    scales = scales * n if len(scales) == 1 else scales
    offsets = [None] * n if offsets is None else offsets * n if len(offsets) == 1 else offsets
    return [packed(s, o, rounded) for s, o in zip(scales, offsets, strict=True)]


@pytest.mark.parametrize("mode", [0, 1])
def test_many_scales(mode):
    scale = torch.cat([torch.randn(400), torch.randn(100) * 1e30, torch.randn(100) * 1e-30])
    out = torch_npu.npu_trans_quant_param(plain.npu(scale), None, mode)
    assert out.dtype == torch.int64 and out.shape == scale.shape
    assert out.tolist() == expected(scale.tolist(), None, mode == 1)


HALVES = [
    1 + 2**-11,
    1 + 3 * 2**-11,
    1 + 2**-11 + 2**-20,
    2 - 2**-12,
    -(1 + 2**-11),
    1e-40,
    0.0,
    -0.0,
    3.4028235e38,
]


def test_rounding_of_the_scale():
    scale = plain.npu(HALVES)
    cut = torch_npu.npu_trans_quant_param(scale)
    rounded = torch_npu.npu_trans_quant_param(scale, round_mode=1)
    assert cut.tolist() == expected(scale.tolist())
    assert rounded.tolist() == expected(scale.tolist(), None, True)
    assert (cut != rounded).tolist() == [False, True, True, True, False, True, False, False, True]


def test_infinite_and_not_a_number():
    scale = plain.npu([plain.INF, -plain.INF])
    assert torch_npu.npu_trans_quant_param(scale, round_mode=1).tolist() == [
        0x40007F800000,
        0x4000FF800000,
    ]


def test_offsets():
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 255.4, 255.6, 1e9, -256.4, -1e9, -1.0, 0.0]
    scale = make(len(values))
    out = torch_npu.npu_trans_quant_param(scale, plain.npu(values))
    assert out.tolist() == expected(scale.tolist(), values)
    found = [(v >> 37) & 0x1FF for v in out.tolist()]
    assert [v - 512 if v > 255 else v for v in found] == [
        0,
        2,
        2,
        0,
        -2,
        255,
        255,
        255,
        -256,
        -256,
        -1,
        0,
    ]


@pytest.mark.parametrize("n,m", [(1, 5), (5, 1), (5, 5), (1, 1)])
def test_one_for_all(n, m):
    scale, offset = make(n), make(m, low=-300, high=300, seed=4)
    out = torch_npu.npu_trans_quant_param(scale, offset)
    assert out.shape == (max(n, m),)
    assert out.tolist() == expected(scale.tolist(), offset.tolist())


def test_two_dimensions():
    scale, offset = make(1, 6), make(1, 6, low=-9, high=9, seed=4)
    out = torch_npu.npu_trans_quant_param(scale, offset)
    assert out.shape == (1, 6)
    assert out[0].tolist() == expected(scale[0].tolist(), offset[0].tolist())
    grouped = make(3, 4)
    out = torch_npu.npu_trans_quant_param(grouped)
    assert out.tolist() == [expected(row) for row in grouped.tolist()]


def test_sizes_that_do_not_match():
    with pytest.raises(
        RuntimeError,
        match=r"npu_trans_quant_param: argument 'offset' must be of shape \(1\) or \(4\)",
    ):
        torch_npu.npu_trans_quant_param(make(4), make(3))
    with pytest.raises(
        RuntimeError, match=r"argument 'scale' must be of shape \(1, \*\).*\(2, 4\)"
    ):
        torch_npu.npu_trans_quant_param(make(2, 4), make(2, 4))


def test_bad_round_mode():
    with pytest.raises(
        RuntimeError, match="argument 'round_mode' must be None, 0 or 1, but received 2"
    ):
        torch_npu.npu_trans_quant_param(make(4), None, 2)


def test_strided_or_empty():
    with pytest.raises(RuntimeError, match="argument 'scale' must be contiguous"):
        torch_npu.npu_trans_quant_param(make(8)[::2])
    with pytest.raises(RuntimeError, match="argument 'scale' must be not empty"):
        torch_npu.npu_trans_quant_param(make(0))


def test_bad_dtype():
    with pytest.raises(
        RuntimeError, match="argument 'scale' must be of dtype torch.float32, .*float16"
    ):
        torch_npu.npu_trans_quant_param(make(4, dtype=torch.float16))
