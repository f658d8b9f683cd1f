"""torch_npu.HiFloat8Tensor: the format, exact to the bit, and the tensor around it."""

from __future__ import annotations

import math

import pytest
import torch

import torch_npu
from torch_npu.utils.hif8_tensor import decode, encode

HiFloat8Tensor = torch_npu.HiFloat8Tensor

#: (code, number) as the paper's table of the format gives them
KNOWN = [
    (0b0000_0000, 0.0), (0b0_0000_001, 2.0**-22), (0b0_0000_111, 2.0**-16), (0b0_0001_000, 1.0),
    (0b0_0001_111, 1.875), (0b0_001_0_000, 2.0), (0b0_001_1_000, 0.5), (0b0_01_00_000, 4.0), (0b0_01_01_000, 8.0),
    (0b0_01_10_000, 0.25), (0b0_10_000_00, 16.0), (0b0_10_011_11, 128 * 1.75), (0b0_10_111_00, 2.0**-7),
    (0b0_11_0000_0, 256.0), (0b0_11_0111_0, 32768.0), (0b0_11_0111_1, math.inf), (0b0_11_1111_0, 2.0**-15),
    (0b0_11_1111_1, 1.5 * 2.0**-15), (0b1_0001_000, -1.0), (0b1_11_0111_1, -math.inf),
]  # fmt: skip


def test_codes_and_numbers():
    codes = torch.tensor([code for code, _ in KNOWN], dtype=torch.uint8)
    assert decode(codes, torch.float32).tolist() == [number for _, number in KNOWN]
    assert encode(torch.tensor([number for _, number in KNOWN])).tolist() == codes.tolist()


def test_every_number_comes_back():
    codes = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        numbers = decode(codes, dtype)
        if dtype == torch.float16:  # 2^-22 is a subnormal of float16, and still exact
            assert torch.equal(
                numbers.nan_to_num(), decode(codes, torch.float32).half().nan_to_num()
            )
        assert torch.equal(encode(numbers), codes)
    assert decode(codes, torch.float32).isnan().nonzero().tolist() == [[128]]


def test_ties_go_away_from_zero_and_others_to_the_nearest():
    numbers = decode(torch.arange(128, dtype=torch.uint8), torch.float64)
    finite = numbers[numbers.isfinite()].sort().values
    for low, high in zip(finite[:-1].tolist(), finite[1:].tolist(), strict=True):
        middle = (low + high) / 2
        below, above = math.nextafter(middle, 0), math.nextafter(middle, math.inf)
        given = torch.tensor([middle, -middle], dtype=torch.float32)
        assert decode(encode(given), torch.float64).tolist() == [high, -high]
        near = torch.tensor([below * (1 - 1e-6), above * (1 + 1e-6)], dtype=torch.float32)
        assert decode(encode(near), torch.float64).tolist() == [low, high]


def test_the_ends():
    given = torch.tensor([40959.0, 40960.0, 1e30, -math.inf, 2.0**-24, math.nan, -0.0, -1e-30])
    assert encode(given).tolist() == [
        0b0_11_0111_0,
        0b0_11_0111_1,
        0b0_11_0111_1,
        0b1_11_0111_1,
        0,
        128,
        0,
        0,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tensor_shows_its_dtype_and_holds_bytes(dtype):
    x = torch.randn(4, 6, dtype=dtype, device="npu")
    made = HiFloat8Tensor.to_hifloat8(x)
    assert made.dtype == dtype and made._data.dtype == torch.uint8 and made.shape == x.shape
    back = made.from_hifloat8()
    assert back.dtype == dtype and type(back) is torch.Tensor
    assert ((back - x).abs() <= x.abs() / 8).all()
    for name, kind in (
        ("float", torch.float32),
        ("half", torch.float16),
        ("bfloat16", torch.bfloat16),
    ):
        assert getattr(made, name)().dtype == kind
    assert made.cpu().device.type == "cpu" and repr(made).startswith("HiFloat8Tensor(data=tensor(")


def test_other_types_become_float32():
    assert HiFloat8Tensor.to_hifloat8(torch.ones(2, dtype=torch.float64)).dtype == torch.float32


def test_shapes():
    made = HiFloat8Tensor.to_hifloat8(torch.arange(6.0, device="npu").view(2, 3))
    assert made.view(3, 2).shape == (3, 2) and made.reshape(6).float().tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    turned = made.transpose(0, 1)
    assert isinstance(turned, HiFloat8Tensor) and turned.float().tolist() == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]
    assert turned.contiguous()._data.is_contiguous() and made.contiguous() is made
    assert made[:, 1:].float().tolist() == [[1, 2], [4, 5]]
    copied = made.clone()
    copied.copy_(torch.zeros(2, 3, device="npu"))
    assert copied.float().sum() == 0 and made.float().sum() == 15
    copied.copy_(made)
    assert copied.float().sum() == 15
    assert made.to_dtype(torch.float16).dtype == torch.float16


def test_operators_work_on_the_numbers():
    made = HiFloat8Tensor.to_hifloat8(torch.full((2, 2), 2.0, device="npu"))
    assert (made + 1).tolist() == [[3.0, 3.0]] * 2 and (made @ made).tolist() == [[8.0, 8.0]] * 2
    with pytest.raises(NotImplementedError, match="would write it in place"):
        made.add_(1)


def test_gradients_pass_through():
    x = torch.randn(2, 3, device="npu", requires_grad=True)
    made = HiFloat8Tensor.to_hifloat8(x)
    (
        made.transpose(0, 1).reshape(6).from_hifloat8() * torch.arange(6.0, device="npu")
    ).sum().backward()
    assert x.grad.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_what_cannot_be_its_data():
    with pytest.raises(ValueError, match="must have an 8-bit dtype, received torch.float32"):
        HiFloat8Tensor(data=torch.ones(2))
