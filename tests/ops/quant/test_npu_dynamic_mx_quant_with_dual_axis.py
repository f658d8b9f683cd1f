"""npu_dynamic_mx_quant_with_dual_axis against frexp and search along each axis."""

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


def compare(x, dst, seen=None, **options):
    y1, scale1, y2, scale2 = torch_npu.npu_dynamic_mx_quant_with_dual_axis(
        x, dst_type=dst, **options
    )
    names = {"round_mode": "mode", "scale_alg": "alg", "dst_type_max": "limit"}
    plain = {names[k]: v for k, v in options.items()}
    mx.same(y1, scale1, mx.quantize(mx.f64(x), dst, -1, seen=seen, **plain), dst)
    mx.same(y2, scale2, mx.quantize(mx.f64(x), dst, -2, seen=seen, **plain), dst)


@pytest.mark.parametrize("dst", [mx.E4M3, mx.E5M2, mx.E2M1, mx.E1M2])
@pytest.mark.parametrize("shape", [(40, 70), (2, 1, 34), (2, 33, 2, 4)])
def test_first_algorithm(dst, shape):
    compare(mx.spread(*shape), dst)


def test_other_algorithms():
    compare(mx.spread(64, 32, dtype=torch.float16), mx.E4M3, scale_alg=1)
    compare(mx.spread(33, 66), mx.E2M1, scale_alg=2, dst_type_max=9.0, round_mode="round")
    compare(mx.spread(34, 66).t(), mx.E2M1, scale_alg=2, dst_type_max=7.0, round_mode="floor")


def test_mantissas_in_bfloat16():
    x = torch.zeros(32, 32)
    x[torch.arange(32), torch.arange(32)] = 1.5 + torch.arange(32) / 1024
    compare(x.half().npu(), mx.E2M1, lambda top: float(torch.tensor(top).bfloat16()), scale_alg=2)


def test_bad_arguments():
    x = make(4, 64, dtype=torch.float16)
    for given, options, text in [
        (x.float(), {}, "'input' must be of dtype torch.float16 or torch.bfloat16"),
        (x[0], {}, "'input' must be a tensor of 2 to 7 dimensions"),
        (x[:, :63], {}, "'input' must be of a last dimension divisible by 2"),
        (x, {"scale_alg": 1}, "'scale_alg' must be 0 or 2, but received 1"),
        (x, {"dst_type_max": 13.0}, "'dst_type_max' must be 0 or from 6.0 to 12.0"),
        (x, {"round_mode": "ceil"}, "'round_mode' must be 'rint', 'floor' or 'round'"),
    ]:
        match = "npu_dynamic_mx_quant_with_dual_axis: argument " + text
        with pytest.raises(RuntimeError, match=match):
            torch_npu.npu_dynamic_mx_quant_with_dual_axis(given, **options)
