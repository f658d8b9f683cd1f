"""npu_dynamic_block_quant against numpy float32, block by block."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import plain
from tests.ops.support import make


def reference(x, height=1, width=128, top=127, least=0.0):
    """Values before rounding and scales, block by block."""
    planes = plain.f32(x).reshape(-1, *x.shape[-2:])
    values = np.zeros_like(planes)
    scales = np.zeros(
        (len(planes), -(-x.shape[-2] // height), -(-x.shape[-1] // width)), np.float32
    )
    for p, r, c in np.ndindex(*scales.shape):
        place = p, slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width)
        scale = np.abs(planes[place]).max()
        if top == 127:  # A2 and A3
            scale = scale * (np.float32(1) / np.float32(127))
        else:
            scale = scale / np.float32(top)
        scale = min(scale, np.float32(1 / least)) if least else scale
        scales[p, r, c] = scale
        values[place] = planes[place] / scale if scale else 0
    lead = x.shape[:-2]
    return values.reshape(x.shape), torch.from_numpy(scales.reshape(*lead, *scales.shape[1:]))


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 128), (2, 300), (4, 3), (2, 3, 256), (1, 1)])
@pytest.mark.parametrize("least", [0.0, 500.0])
def test_int8(dtype, shape, least):
    x = make(*shape, dtype=dtype)
    y, scale = torch_npu.npu_dynamic_block_quant(x, min_scale=least)
    values, want = reference(x, least=least)
    assert y.dtype == torch.int8 and scale.dtype == torch.float32
    assert torch.equal(scale.cpu(), want)
    plain.same(y, plain.whole(values, -128, 127))


def test_zeros_and_non_contiguous():
    y, scale = torch_npu.npu_dynamic_block_quant(make(2, 130, dtype=torch.float16) * 0)
    assert not y.any() and not scale.any()
    x = make(130, 3, dtype=torch.float16).t()
    y, scale = torch_npu.npu_dynamic_block_quant(x)
    assert y.is_contiguous() and scale.is_contiguous()
    plain.same(y, plain.whole(reference(x)[0], -128, 127))


def test_an_infinite_scale_on_ascend950():
    x = make(1, 128, dtype=torch.bfloat16)
    x[0, 5] = -torch.inf
    with on("A5"):
        y, scale = torch_npu.npu_dynamic_block_quant(x, min_scale=1e6, dst_type=292)
        assert scale.item() == torch.inf and y.float().isnan().sum() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_on_ascend950(dtype):
    x = make(2, 70, 200, dtype=dtype)
    with on("A5"):
        y, scale = torch_npu.npu_dynamic_block_quant(
            x, dst_type=292, row_block_size=64, col_block_size=192
        )
    values, want = reference(x, 64, 192, 448)
    assert scale.shape == (2, 2, 2) and torch.equal(scale.cpu(), want)
    assert torch.equal(y.cpu().float(), torch.from_numpy(values).to(torch.float8_e4m3fn).float())


@pytest.mark.family("A2")
def test_bad_arguments():
    x = make(2, 8, dtype=torch.float16)
    for name, value, text in [
        ("min_scale", -1.0, "0 or positive"),
        ("round_mode", "floor", "'rint'"),
        ("dst_type", 292, "the type int8"),
        ("row_block_size", 2, "1"),
        ("col_block_size", 64, "128"),
    ]:
        message = f"npu_dynamic_block_quant: argument '{name}' must be {text}, but received"
        with pytest.raises(RuntimeError, match=message):
            torch_npu.npu_dynamic_block_quant(x, **{name: value})
    with pytest.raises(NotImplementedError, match="'dst_type_max' must be left at 0.0"):
        torch_npu.npu_dynamic_block_quant(x, dst_type_max=3.0)
    with on("A5"):
        for name, value, text in [
            ("row_block_size", 2, "1, 64, 128, 256 or 512"),
            ("col_block_size", 512, "64, 128, 192 or 256"),
            ("dst_type_max", 7.0, "0.0, 15.0, 56.0, 224.0 or 32768.0"),
        ]:
            options = {"dst_type": 290, "round_mode": "round", name: value}
            with pytest.raises(
                RuntimeError, match=f"argument '{name}' must be {text}, but received"
            ):
                torch_npu.npu_dynamic_block_quant(x, **options)


@pytest.mark.family("A2")
def test_bad_input():
    with pytest.raises(RuntimeError, match="'x' must be of dtype .*float32"):
        torch_npu.npu_dynamic_block_quant(make(2, 8))
    with pytest.raises(RuntimeError, match="'x' must be a tensor of 2 to 3 dimensions"):
        torch_npu.npu_dynamic_block_quant(make(8, dtype=torch.float16))
