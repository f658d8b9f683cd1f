"""npu_dtype_cast and its kin against torch's own casts and the tables of the small formats."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu
from tests.ops.families import on
from tests.ops.support import gradcheck, make

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.uint8, torch.bool,
]  # fmt: skip
CODES = torch_npu._dtypes.CODES


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_between_torch_types(source, target):
    x = make(3, 5, dtype=source, low=0, high=9)
    out = torch_npu.npu_dtype_cast(x, target)
    assert out.dtype == target and torch.equal(out.cpu(), x.cpu().to(target))
    assert out.data_ptr() != x.data_ptr()
    under = torch_npu._npu_dtype_cast(x, target)
    assert torch.equal(under.cpu(), out.cpu()) and under.dtype == target


def test_floats_are_truncated():
    x = torch.tensor([0.9, -0.2, -1.9, 2.5]).to(make(1).device)
    assert torch_npu.npu_dtype_cast(x, dtype=torch.int).tolist() == [0, 0, -1, 2]


def test_by_number_and_non_contiguous():
    x = make(4, 3).t()
    out = torch_npu.npu_dtype_cast(x, CODES["bfloat16"])
    assert out.dtype == torch.bfloat16 and out.is_contiguous()
    assert torch.equal(out.cpu(), x.cpu().bfloat16())


def test_8_bit_floats():
    x = make(4, 6, low=-300, high=300)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        out = torch_npu.npu_dtype_cast(x, dtype)
        assert out.dtype == dtype and torch.equal(out.cpu().float(), x.cpu().to(dtype).float())
        back = torch_npu.npu_dtype_cast(out, torch.float32, dtype)
        assert torch.equal(back.cpu(), x.cpu().to(dtype).float())


def test_int4_holds_two_values_a_byte():
    x = torch.tensor([1, -2, 7, -8], dtype=torch.int32).to(make(1).device)
    with on("A5"):
        out = torch_npu.npu_dtype_cast(x, CODES["int4"], input_dtype=torch.int32)
        assert out.tolist() == [0xE1, 0x87] and out.dtype == torch.uint8
        back = torch_npu.npu_dtype_cast(out, torch.int8, CODES["int4"])
        floats = torch.tensor([[-8.0, 7.0], [2.5, -0.5], [99, -99]]).to(x.device)
        packed = torch_npu.npu_dtype_cast(floats, CODES["int4"])
    assert back.tolist() == [1, -2, 7, -8]
    assert packed.tolist() == [[0x78], [0x02], [0x87]]


def test_hifloat8_all_bytes():
    codes = torch.arange(256, dtype=torch.uint8).to(make(1).device)
    with on("A5"):
        values = torch_npu.npu_dtype_cast(codes, torch.float32, CODES["hifloat8"])
        finite = values.isfinite()
        back = torch_npu.npu_dtype_cast(values[finite], CODES["hifloat8"])
    assert torch.equal(back.cpu(), codes.cpu()[finite.cpu()]) and int(finite.sum()) == 253
    assert values[[0x08, 0x88, 0x09, 0x6E, 0x01]].tolist() == [1.0, -1.0, 1.125, 32768.0, 2.0**-22]


@pytest.mark.parametrize("name,grid", [
    ("float4_e2m1fn_x2", [0, 0.5, 1, 1.5, 2, 3, 4, 6]),
    ("float4_e1m2fn_x2", [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]),
])  # fmt: skip
def test_float4(name, grid):
    x = torch.tensor([[*grid, *(-float(g) for g in grid)]]).to(make(1).device)
    with on("A5"):
        out = torch_npu.npu_dtype_cast(x, CODES[name])
        back = torch_npu.npu_dtype_cast(out, torch.float32, CODES[name])
    assert out.view(torch.uint8).tolist() == [[b * 2 + (b * 2 + 1) * 16 for b in range(8)]]
    assert back.tolist() == x.tolist()


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, torch.float64])
def test_gradient_comes_back_in_the_inputs_type(target):
    x = make(3, 4, requires_grad=True)
    out = torch_npu.npu_dtype_cast(x, target)
    out.backward(torch.full_like(out, 0.5))
    assert x.grad.dtype == torch.float32 and torch.equal(x.grad.cpu(), torch.full((3, 4), 0.5))


def test_gradients():
    x = make(2, 3, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda t: torch_npu.npu_dtype_cast(t, torch.float64), x)
    gradcheck(lambda t: torch_npu._npu_dtype_cast(t, torch.float64), x)
    assert not torch_npu.npu_dtype_cast(x, torch.int32).requires_grad


def test_named_backward():
    grad = make(2, 3, dtype=torch.float16)
    out = torch_npu.npu_dtype_cast_backward(grad, torch.float32, torch.float16, torch.float32)
    assert out.dtype == torch.float32 and torch.equal(out.cpu(), grad.cpu().float())
    out = torch_npu._npu_dtype_cast_backward(grad, torch.bfloat16)
    assert torch.equal(out.cpu(), grad.cpu().bfloat16())


def test_in_place():
    x, source = make(3, 4), make(3, 4, dtype=torch.float16, seed=5)
    assert torch_npu.npu_dtype_cast_(x, source) is x
    assert torch.equal(x.cpu(), source.cpu().float())
    other = make(3, 4, seed=6)
    torch_npu.npu_dtype_cast_(x, other)
    assert torch.equal(x.cpu(), source.cpu().float())


def test_fake_tensors():
    with FakeTensorMode():
        x = torch.empty(2, 4, device=make(1).device)
        out = torch_npu.npu_dtype_cast(x, torch.float16)
    assert out.dtype == torch.float16 and out.shape == (2, 4) and out.device.type == x.device.type


def test_no_such_type():
    with pytest.raises(
        RuntimeError, match="'dtype' must be a data type, but received no known type"
    ):
        torch_npu.npu_dtype_cast(make(2), 999)


@pytest.mark.family("A2")
def test_types_of_another_chip():
    with pytest.raises(
        RuntimeError, match="'dtype' must be a type of this chip, but received hifloat8"
    ):
        torch_npu.npu_dtype_cast(make(2), CODES["hifloat8"])


def test_bad_input():
    with (
        on("A5"),
        pytest.raises(RuntimeError, match=r"'self' must be of an even last size.*\(2, 3\)"),
    ):
        torch_npu.npu_dtype_cast(make(2, 3), CODES["int4"])
    with pytest.raises(RuntimeError, match="'self' must be of dtype torch.float16.*float32"):
        torch_npu.npu_dtype_cast(make(2), torch.int8, torch.float16)
    with pytest.raises(RuntimeError, match=r"'src' must be of shape \(2\).*\(3,\)"):
        torch_npu.npu_dtype_cast_(make(2), make(3, dtype=torch.float16))
