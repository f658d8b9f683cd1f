"""npu_quant_max against fp32 products and grids of the formats."""

import math

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


def compare(y, values, dst):
    want = [mx.rounded(0.0 if math.isnan(v) else v, dst) for v in values.reshape(-1).tolist()]
    np.testing.assert_array_equal(mx.decode(y, dst).reshape(-1), want)


@pytest.mark.parametrize("dst", [mx.E4M3, mx.E5M2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(7,), (3, 40), (2, 3, 4, 5)])
def test_one_scale(dst, dtype, shape):
    x, scale = make(*shape, dtype=dtype, low=-9, high=9), make(1, low=30, high=90)
    y, top = torch_npu.npu_quant_max(x, scale, dst_dtype=dst)
    compare(y, (x.cpu().float() * scale.cpu()).numpy(), dst)
    assert top.dtype == dtype and top.shape == (1,) and torch.equal(top, x.abs().max().reshape(1))


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_groups(integer):
    x, scale = make(7, 6, low=-9, high=9), make(3, low=1, high=90)
    ends = torch.tensor([2, 2, 7], dtype=integer).npu()
    y, top = torch_npu.npu_quant_max(x, scale, dst_dtype=mx.E4M3, group_list=ends)
    factor = scale.cpu()[torch.tensor([0, 0, 2, 2, 2, 2, 2])][:, None]
    compare(y, (x.cpu() * factor).numpy(), mx.E4M3)
    want = [float(x[:2].abs().max()), 0.0, float(x[2:].abs().max())]
    assert top.tolist() == want


def test_hifloat8_nan_and_strides():
    x = make(6, 4, low=-9, high=9).t()
    y, _ = torch_npu.npu_quant_max(x, make(1, low=2, high=3), dst_dtype=290, round_mode="round")
    back = torch_npu.npu_dtype_cast(y, torch.float32, input_dtype=290).cpu()
    values = x.cpu() * make(1, low=2, high=3).cpu()
    assert ((back - values).abs() <= values.abs() / 8).all()
    x = torch.tensor([1.0, math.nan, -math.inf]).npu()
    y, top = torch_npu.npu_quant_max(x, torch.ones(1).npu())
    assert y.float().tolist() == [1.0, 0.0, -57344.0] and top.isnan().all()


def test_bad_arguments():
    x, scale = make(4, 6), make(1)
    for args, options, text in [
        ((x.to("npu", torch.float64), scale), {}, "'x' must be of dtype"),
        ((x, make(2)), {}, r"'scale' must be of shape \(1\), but received \(2,\)"),
        ((x, scale.half()), {}, "'scale' must be of dtype torch.float32"),
        ((x, scale), {"dst_dtype": 1}, "'dst_dtype' must be the type float8_e5m2"),
        ((x, scale), {"round_mode": "round"}, "'round_mode' must be 'rint'"),
        (
            (x, make(2)),
            {"group_list": torch.tensor([1, 3]).npu()},
            r"'group_list' must be a list that ends with the number of rows \(4\)",
        ),
    ]:
        with pytest.raises(RuntimeError, match="npu_quant_max: argument " + text):
            torch_npu.npu_quant_max(*args, **options)
