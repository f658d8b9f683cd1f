"""npu_anti_mx_quant against tables of the formats' values."""

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


def stored(dst, *shape):
    codes = make(*shape, dtype=torch.uint8, low=0, high=120)
    if dst in (mx.E2M1, mx.E1M2):
        return codes * 2 + 1
    return codes.view(torch.float8_e4m3fn if dst == mx.E4M3 else torch.float8_e5m2)


@pytest.mark.parametrize("src", [mx.E4M3, mx.E5M2, mx.E2M1, mx.E1M2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 40), (2, 3, 96), (16,)])
def test_values(src, dtype, shape):
    x = stored(src, *shape)
    values = mx.decode(x, src)
    pairs = -(-values.shape[-1] // 64)
    scale = make(*shape[:-1], pairs, 2, dtype=torch.uint8, low=118, high=132)
    y = torch_npu.npu_anti_mx_quant(x, scale, dst_type=dtype, src_type=src)
    powers = 2.0 ** (scale.cpu().double().numpy().reshape(*shape[:-1], -1) - 127)
    want = values * np.repeat(powers, 32, -1)[..., : values.shape[-1]]
    assert y.dtype == dtype and torch.equal(y.cpu(), torch.from_numpy(want).to(dtype))


def test_nan_scale_axis_and_default():
    x = stored(mx.E4M3, 2, 64)
    scale = torch.full((2, 1, 2), 127, dtype=torch.uint8)
    scale[0, 0, 1] = 255
    y = torch_npu.npu_anti_mx_quant(x, scale.npu().view(torch.float8_e8m0fnu), axis=1)
    assert y.dtype == torch.bfloat16
    assert y[0, 32:].isnan().all() and not y[0, :32].isnan().any() and not y[1].isnan().any()
    four = torch_npu.npu_anti_mx_quant(stored(mx.E2M1, 2, 32), scale.npu(), src_type=None)
    assert four.shape == (2, 64)


def test_bad_arguments():
    x, scale = stored(mx.E4M3, 2, 64), make(2, 1, 2, dtype=torch.uint8, low=1, high=9)
    for args, options, text in [
        ((x, scale), {"axis": 0}, "'axis' must be -1 or 1, but received 0"),
        ((x, scale), {"src_type": mx.E5M2}, "'x' must be of dtype torch.float8_e5m2"),
        ((x, scale), {"dst_type": torch.int8}, "'dst_type' must be the type float16"),
        ((x, scale[:1]), {}, r"'mxscale' must be of shape \(2, 1, 2\), but received \(1, 1, 2\)"),
        ((x, scale.float()), {}, "'mxscale' must be of dtype"),
    ]:
        with pytest.raises(RuntimeError, match="npu_anti_mx_quant: argument " + text):
            torch_npu.npu_anti_mx_quant(*args, **options)
    with on("A3"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_anti_mx_quant(x, scale)
