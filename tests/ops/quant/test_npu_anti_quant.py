"""npu_anti_quant against numpy float32."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make


def agree(out, values, scale, offset, dtype):
    """(values + offset) * scale in float32, rounded once."""
    want = values.float().numpy()
    if offset is not None:
        want = want + plain.f32(offset)
    want = torch.from_numpy(want * plain.f32(scale)).to(dtype)
    assert out.dtype == dtype and out.shape == want.shape
    assert torch.equal(out.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("shifted", [False, True])
def test_int8(dtype, scale_dtype, size, shifted):
    x = make(2, 3, 7, dtype=torch.int8, low=-128, high=128)
    scale = make(size, dtype=scale_dtype, low=-2, high=2)
    offset = make(size, dtype=scale_dtype, low=-9, high=9, seed=5) if shifted else None
    out = torch_npu.npu_anti_quant(x, scale, offset=offset, dst_dtype=dtype, src_dtype=torch.int8)
    agree(out, x.cpu(), scale, offset, dtype)


@pytest.mark.parametrize("src", [None, torch.quint4x2, 285])
@pytest.mark.parametrize("size", [1, 24])
def test_int4(src, size):
    x = make(5, 3, dtype=torch.int32, low=-(2**31), high=2**31)
    scale, offset = make(size, low=-2, high=2), make(size, low=-9, high=9, seed=5)
    out = torch_npu.npu_anti_quant(x, scale, offset=offset, src_dtype=src)
    agree(out, plain.nibbles(x), scale, offset, torch.float16)


def test_every_byte():
    x = torch.arange(-128, 128).to(torch.int8)
    out = torch_npu.npu_anti_quant(plain.npu(x), plain.npu([1.0]))
    assert out.tolist() == list(range(-128, 128))


def test_empty_and_non_contiguous():
    assert torch_npu.npu_anti_quant(make(0, 4, dtype=torch.int8, high=2), make(4)).shape == (0, 4)
    x = make(6, 4, dtype=torch.int8, low=-128, high=128).t()
    scale = make(12, low=-2, high=2)[::2]
    out = torch_npu.npu_anti_quant(x, scale)
    assert out.is_contiguous()
    agree(out, x.cpu(), scale, None, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_on_ascend950(dtype):
    values = torch.randint(-100, 100, (4, 6)).float().to(dtype)
    scale = make(6, low=-2, high=2)
    with on("A5"):
        out = torch_npu.npu_anti_quant(plain.npu(values), scale)
    agree(out, values, scale, None, torch.float16)


def test_hifloat8_on_ascend950():
    x = plain.npu([[0x08, 0x10, 0x88, 0x00, 0x80]], torch.uint8)
    with on("A5"):
        out = torch_npu.npu_anti_quant(x, plain.npu([3.0]), src_dtype=290)
    assert out[0, :4].tolist() == [3.0, 6.0, -3.0, 0.0] and out[0, 4].isnan()


def test_scale_of_another_size():
    with pytest.raises(
        RuntimeError,
        match=r"npu_anti_quant: argument 'scale' must be of shape \(1\) or \(8\).*\(4,\)",
    ):
        torch_npu.npu_anti_quant(make(2, 1, dtype=torch.int32, high=9), make(4))


def test_offset_unlike_scale():
    x = make(2, 4, dtype=torch.int8, high=9)
    with pytest.raises(RuntimeError, match=r"argument 'offset' must be of shape \(4\).*\(1,\)"):
        torch_npu.npu_anti_quant(x, make(4), offset=make(1))
    with pytest.raises(RuntimeError, match="argument 'offset' must be of the dtype of 'scale'"):
        torch_npu.npu_anti_quant(x, make(4), offset=make(4, dtype=torch.bfloat16))


def test_types_that_do_not_match():
    x = make(2, 4, dtype=torch.int8, high=9)
    with pytest.raises(
        RuntimeError, match=r"argument 'src_dtype' must be the type int8, but received int4 \(16\)"
    ):
        torch_npu.npu_anti_quant(x, make(4), src_dtype=torch.quint4x2)
    with pytest.raises(
        RuntimeError,
        match=r"argument 'dst_dtype' must be .* but received no known type \(-10\) .*UNKNOWN_SCALAR",
    ):
        torch_npu.npu_anti_quant(x, make(4), dst_dtype=-10)
    with pytest.raises(RuntimeError, match="argument 'x' must be of dtype .*int64"):
        torch_npu.npu_anti_quant(make(2, 4, dtype=torch.int64, high=9), make(4))


def test_inference_series():
    with on("310P"):
        with pytest.raises(RuntimeError, match="argument 'x' must be of dtype torch.int8"):
            torch_npu.npu_anti_quant(make(2, 4, dtype=torch.int32, high=9), make(1))
        with pytest.raises(RuntimeError, match="argument 'dst_dtype' must be the type float16"):
            torch_npu.npu_anti_quant(
                make(2, 4, dtype=torch.int8, high=9), make(1), dst_dtype=torch.bfloat16
            )
