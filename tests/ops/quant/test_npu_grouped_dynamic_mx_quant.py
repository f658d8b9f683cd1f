"""npu_grouped_dynamic_mx_quant against frexp and search, group by group."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import mx
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def reference(x, ends, dst, **options):
    rows, columns = x.shape
    values = np.zeros((rows, columns))
    scales = np.zeros((rows // 64 + len(ends), columns, 2), np.uint8)
    start = 0
    for g, end in enumerate(ends):
        if end > start:
            part, bytes_ = mx.quantize(mx.f64(x)[start:end], dst, 0, **options)
            values[start:end] = part
            first = start // 64 + g
            scales[first : first + len(bytes_)] = bytes_
        start = end
    return values, scales


@pytest.mark.parametrize("dst", [mx.E4M3, mx.E5M2, mx.E2M1, mx.E1M2])
@pytest.mark.parametrize("ends", [(130,), (1, 64, 130), (0, 0, 33, 33, 130), (65, 130, 130)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_groups(dst, ends, dtype):
    x = mx.spread(130, 6, dtype=dtype)
    index = torch.tensor(ends, dtype=torch.int32).npu()
    y, scale = torch_npu.npu_grouped_dynamic_mx_quant(x, index, dst_type=dst)
    mx.same(y, scale, reference(x, ends, dst), dst)


@pytest.mark.parametrize(
    "dst,limit,mode",
    [
        (mx.E2M1, 0.0, "rint"),
        (mx.E2M1, 7.0, "floor"),
        (mx.E2M1, 10.5, "round"),
        (mx.E1M2, 0.0, "rint"),
        (mx.E1M2, 1.875, "floor"),
        (mx.E1M2, 3.5, "round"),
    ],
)
def test_third_algorithm(dst, limit, mode):
    x = mx.spread(70, 6).t().contiguous().t()
    index = torch.tensor([30, 70], dtype=torch.int32).npu()
    y, scale = torch_npu.npu_grouped_dynamic_mx_quant(
        x, index, dst_type=dst, scale_alg=2, dst_type_max=limit, round_mode=mode
    )
    mx.same(y, scale, reference(x, (30, 70), dst, alg=2, limit=limit, mode=mode), dst)


def test_second_algorithm():
    x = mx.spread(70, 6)
    index = torch.tensor([30, 70], dtype=torch.int32).npu()
    y, scale = torch_npu.npu_grouped_dynamic_mx_quant(x, index, scale_alg=1)
    assert y.dtype == torch.float8_e5m2
    mx.same(y, scale, reference(x, (30, 70), mx.E5M2, alg=1), mx.E5M2)


def test_bad_arguments():
    x, index = make(8, 4, dtype=torch.float16), torch.tensor([3, 8], dtype=torch.int32).npu()
    for args, options, text in [
        ((x.float(), index), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        ((x, index.long()), {}, "'group_index' must be of dtype torch.int32"),
        (
            (x, index[:1]),
            {},
            r"'group_index' must be a list that ends with the number of rows \(8\)",
        ),
        ((x, index.flip(0)), {}, "'group_index' must be non-decreasing"),
        ((x, index), {"blocksize": 64}, "'blocksize' must be 32, but received 64"),
        ((x, index), {"scale_alg": 2}, "'scale_alg' must be 0 or 1, but received 2"),
        (
            (x, index),
            {"dst_type": 297, "dst_type_max": 6.0},
            "'dst_type_max' must be 0 or from 1.75",
        ),
    ]:
        with pytest.raises(RuntimeError, match="npu_grouped_dynamic_mx_quant: argument " + text):
            torch_npu.npu_grouped_dynamic_mx_quant(*args, **options)
