"""npu_rms_norm_dynamic_mx_quant and npu_add_rms_norm_dynamic_mx_quant: the norm in fp64, then frexp and search."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm import quantized
from tests.ops.quant import mx
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def compare(y, scale, rstd, x, gamma, beta, dst, epsilon=1e-6, **options):
    """Exact for the norm rounded to the dtype of x; a value on the edge of two roundings may go either way."""
    want, norm = quantized.norm(x, gamma, beta, epsilon)
    torch.testing.assert_close(rstd.cpu().double(), norm, rtol=1e-5, atol=0)
    rounded = want.to(x.dtype).double().numpy()
    values, bytes_ = mx.quantize(rounded, dst, **options)
    got = mx.decode(y, dst)
    assert (scale.cpu().numpy() == bytes_).mean() > 0.99
    assert (got == values).mean() > 0.98
    powers = 2.0 ** (scale.cpu().double().numpy().reshape(*x.shape[:-1], -1) - 127)
    spread = np.repeat(powers, 32, -1)[..., : x.shape[-1]]
    assert (np.abs(got * spread - rounded) <= np.abs(rounded) * 0.6 + spread).all()


CASES = [
    (mx.E2M1, {}),
    (mx.E1M2, {"round_mode": "round"}),
    (mx.E2M1, {"round_mode": "floor"}),
    (mx.E4M3, {}),
    (mx.E4M3, {"scale_alg": 1}),
    (mx.E5M2, {"scale_alg": 1}),
]


def plain(options):
    names = {"round_mode": "mode", "scale_alg": "alg"}
    return {names[k]: v for k, v in options.items()}


@pytest.mark.parametrize("dst,options", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 140), (2, 3, 64), (96,)])
def test_norm(dst, options, dtype, shape):
    x, gamma, beta = make(*shape, dtype=dtype), make(shape[-1]), make(shape[-1], seed=3)
    y, scale, rstd = torch_npu.npu_rms_norm_dynamic_mx_quant(
        x, gamma, beta=beta, epsilon=1e-3, dst_type=dst, **options
    )
    compare(y, scale, rstd, x, gamma, beta, dst, 1e-3, **plain(options))


@pytest.mark.parametrize("dst,options", CASES)
def test_sum(dst, options):
    x1, x2 = (make(5, 140, dtype=torch.bfloat16, seed=s) for s in (1, 2))
    gamma = make(140, dtype=torch.bfloat16)
    y, x, scale, rstd = torch_npu.npu_add_rms_norm_dynamic_mx_quant(
        x1, x2, gamma, dst_type=dst, **options
    )
    assert torch.equal(x.cpu(), (x1.cpu().float() + x2.cpu().float()).bfloat16())
    compare(y, scale, rstd, x, gamma, None, dst, **plain(options))


def test_exact_powers():
    """Rows whose norm is exact: every byte is known."""
    x = torch.full((2, 64), 2.0, dtype=torch.bfloat16).npu()
    gamma = torch.full((64,), 3.0, dtype=torch.bfloat16).npu()
    y, scale, rstd = torch_npu.npu_rms_norm_dynamic_mx_quant(x, gamma, epsilon=0.0)
    assert rstd.tolist() == [[0.5], [0.5]]
    assert (scale == 126).all() and (y == 0x77).all()  # 3 = 6 * 2^-1


def test_zeros_and_nan():
    x = torch.zeros(2, 64, dtype=torch.float16)
    x[1, 3] = math.nan
    y, scale, rstd = torch_npu.npu_rms_norm_dynamic_mx_quant(x.npu(), make(64), dst_type=mx.E5M2)
    assert scale.tolist() == [[[0, 0]], [[255, 255]]]
    assert not y.float().any() and rstd[1].isnan().all() and rstd[0] == 1000


def test_bad_arguments():
    x, gamma = make(4, 12, dtype=torch.float16), make(12, dtype=torch.float16)
    for args, options, text in [
        ((x.float(), gamma), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        ((x, gamma.bfloat16()), {}, "'gamma' must be of dtype torch.float16 or torch.float32"),
        ((x, gamma[:5]), {}, r"'gamma' must be of shape \(12\)"),
        ((x, gamma), {"beta": make(12)}, "'beta' must be of the dtype of 'gamma'"),
        ((x[:, :11], gamma[:11]), {}, "'x' must be of a last dimension divisible by 2"),
        ((x, gamma), {"scale_alg": 1}, "'scale_alg' must be 0, but received 1"),
    ]:
        with pytest.raises(RuntimeError, match="npu_rms_norm_dynamic_mx_quant: argument " + text):
            torch_npu.npu_rms_norm_dynamic_mx_quant(*args, **options)
    with pytest.raises(RuntimeError, match=r"'x2' must be of shape \(4, 12\)"):
        torch_npu.npu_add_rms_norm_dynamic_mx_quant(x, x[:2], gamma)
    with on("A2"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_add_rms_norm_dynamic_mx_quant(x, x, gamma)
