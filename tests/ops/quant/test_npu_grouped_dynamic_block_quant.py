"""npu_grouped_dynamic_block_quant against numpy float32, block by block."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import mx, plain
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def reference(x, ends, height, width, top, least=0.0):
    planes = plain.f32(x).reshape(-1, *x.shape[-2:])
    values = np.zeros_like(planes)
    columns = -(-x.shape[-1] // width)
    scales = np.zeros((len(planes), x.shape[-2] // height + len(ends), columns), np.float32)
    start = 0
    for g, end in enumerate(ends):
        for b, row in enumerate(range(start, end, height)):
            for p, c in np.ndindex(len(planes), columns):
                place = p, slice(row, min(row + height, end)), slice(c * width, (c + 1) * width)
                scale = np.abs(planes[place]).max() / np.float32(top)
                scale = min(scale, np.float32(1 / least)) if least else scale
                scales[p, start // height + g + b, c] = scale
                values[place] = planes[place] / scale if scale else 0
        start = end
    lead = x.shape[:-2]
    return values.reshape(x.shape), torch.from_numpy(scales.reshape(*lead, *scales.shape[1:]))


@pytest.mark.parametrize("dst,top", [(mx.E4M3, 448), (mx.E5M2, 57344)])
@pytest.mark.parametrize("shape", [(300, 130), (2, 140, 64), (3, 5)])
@pytest.mark.parametrize("height,width", [(1, 64), (128, 128), (1, 192)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_blocks(dst, top, shape, height, width, dtype):
    x = make(*shape, dtype=dtype, low=-9, high=9)
    rows = shape[-2]
    ends = (1, 1, rows // 2, rows)
    index = torch.tensor(ends, dtype=torch.int32).npu()
    y, scale = torch_npu.npu_grouped_dynamic_block_quant(
        x, index, dst_type=dst, row_block_size=height, col_block_size=width
    )
    values, want = reference(x, ends, height, width, top)
    assert torch.equal(scale.cpu(), want)
    kind = torch.float8_e4m3fn if dst == mx.E4M3 else torch.float8_e5m2
    expected = torch.from_numpy(values).clamp(-top, top).to(kind).float()
    assert y.dtype == kind and torch.equal(y.cpu().float(), expected)


def test_least_scale_zeros_and_strides():
    x = make(64, 6, dtype=torch.float16, low=-900, high=900).t()
    x = torch.cat((x, x[:1] * 0))
    index = torch.tensor([7], dtype=torch.int32).npu()
    y, scale = torch_npu.npu_grouped_dynamic_block_quant(
        x, index, min_scale=200.0, dst_type=mx.E5M2, col_block_size=64
    )
    values, want = reference(x, (7,), 1, 64, 57344, 200.0)
    assert torch.equal(scale.cpu(), want) and float(scale.max()) == pytest.approx(1 / 200)
    expected = torch.from_numpy(values).clamp(-57344, 57344).to(torch.float8_e5m2).float()
    assert torch.equal(y.cpu().float(), expected) and not y[6].float().any()


def test_an_infinite_scale_is_no_subject_to_the_least():
    """CANN's kernel takes the minimum of finite scales alone; a quotient by infinity is 0, or not a number."""
    x = make(2, 64, dtype=torch.bfloat16)
    x[0, 3] = torch.inf
    index = torch.tensor([2], dtype=torch.int32).npu()
    y, scale = torch_npu.npu_grouped_dynamic_block_quant(
        x, index, min_scale=1e6, dst_type=mx.E4M3, col_block_size=64
    )
    assert scale.flatten().tolist()[0] == torch.inf
    assert float(scale.flatten()[1]) == pytest.approx(1e-6)
    first = y[0].float().cpu()
    assert first[3].isnan() and not first[torch.arange(64) != 3].any()


def test_the_limit_is_read_for_hifloat8_alone():
    x, index = make(4, 64, dtype=torch.bfloat16), torch.tensor([4], dtype=torch.int32).npu()
    plain_, limited = (
        torch_npu.npu_grouped_dynamic_block_quant(x, index, col_block_size=64, dst_type_max=limit)
        for limit in (0.0, 15.0)
    )
    for got, want in zip(limited, plain_, strict=True):
        assert torch.equal(got.cpu().view(torch.uint8), want.cpu().view(torch.uint8))


@pytest.mark.parametrize("limit", [0.0, 15.0])
def test_hifloat8(limit):
    x = make(4, 64, dtype=torch.bfloat16)
    index = torch.tensor([4], dtype=torch.int32).npu()
    y, scale = torch_npu.npu_grouped_dynamic_block_quant(
        x, index, dst_type=290, round_mode="round", dst_type_max=limit, col_block_size=64
    )
    values, want = reference(x, (4,), 1, 64, limit or 32768)
    assert torch.equal(scale.cpu(), want)
    back = torch_npu.npu_dtype_cast(y, torch.float32, input_dtype=290).cpu().numpy()
    assert (np.abs(back - values) <= np.abs(values) / 4 + 2.0**-22).all()


def test_bad_arguments():
    x, index = make(4, 64, dtype=torch.float16), torch.tensor([1, 4], dtype=torch.int32).npu()
    for args, options, text in [
        ((x.float(), index), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        ((x, index.long()), {}, "'group_list' must be of dtype torch.int32"),
        ((x, index - 1), {}, "'group_list' must be a list that ends with the number of rows"),
        ((x, index), {"row_block_size": 2}, "'row_block_size' must be 1, 128, 256 or 512"),
        ((x, index), {"col_block_size": 32}, "'col_block_size' must be 64, 128, 192 or 256"),
        ((x, index), {"group_list_type": 1}, "'group_list_type' must be 0, but received 1"),
        ((x, index), {"round_mode": "round"}, "'round_mode' must be 'rint'"),
        ((x, index), {"min_scale": -1.0}, "'min_scale' must be 0 or positive"),
        ((x, index), {"dst_type": 1}, "'dst_type' must be the type float8_e5m2"),
    ]:
        with pytest.raises(RuntimeError, match="npu_grouped_dynamic_block_quant: argument " + text):
            torch_npu.npu_grouped_dynamic_block_quant(*args, **options)
    with pytest.raises(NotImplementedError, match="round_mode 'hybrid'"):
        torch_npu.npu_grouped_dynamic_block_quant(x, index, dst_type=290, round_mode="hybrid")
