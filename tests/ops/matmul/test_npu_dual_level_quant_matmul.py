"""npu_dual_level_quant_matmul against fp64, depth by depth."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.matmul.eights import powers
from tests.ops.quant import mx
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def inputs(m, n, k):
    x1 = make(m, k // 2, dtype=torch.uint8, low=0, high=256, seed=1)
    x2 = make(n, k // 2, dtype=torch.uint8, low=0, high=256, seed=2)
    wide, pairs = -(-k // 512), -(-k // 64)
    p1, p2 = powers(m, pairs, 2, seed=3)[0], powers(n, pairs, 2, seed=4)[0]
    return x1, x2, make(m, wide, seed=5), make(wide, n, seed=6), p1, p2


def reference(x1, x2, s1, s2, p1, p2, bias=None):
    a = torch.from_numpy(mx.decode(x1, mx.E2M1))
    b = torch.from_numpy(mx.decode(x2, mx.E2M1))
    f1, f2 = (2.0 ** (p.cpu().double() - 127) for p in (p1, p2))
    s1, s2 = s1.cpu().double(), s2.cpu().double()
    y = torch.zeros(len(a), len(b), dtype=torch.float64)
    for k in range(a.shape[1]):
        left = a[:, k] * f1[:, k // 64, k // 32 % 2] * s1[:, k // 512]
        y += left[:, None] * (b[:, k] * f2[:, k // 64, k // 32 % 2] * s2[k // 512])
    return y if bias is None else y + bias.cpu().double()


@pytest.mark.parametrize("sizes", [(3, 5, 64), (4, 2, 1100), (1, 1, 2), (5, 7, 512)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_product(sizes, biased, dtype):
    args = inputs(*sizes)
    bias = make(sizes[1]) if biased else None
    y = torch_npu.npu_dual_level_quant_matmul(*args, bias=bias, output_dtype=dtype)
    want = reference(*args, bias)
    eps = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert y.dtype == dtype
    assert ((y.cpu().double() - want).abs() <= want.abs() * eps + want.abs().max() * 1e-5).all()


def test_with_its_quantizer():
    x, w = make(4, 600, dtype=torch.bfloat16), make(6, 600, dtype=torch.bfloat16, seed=3)
    qx, sx, px = torch_npu.npu_dynamic_dual_level_mx_quant(x)
    qw, sw, pw = torch_npu.npu_dynamic_dual_level_mx_quant(w)
    y = torch_npu.npu_dual_level_quant_matmul(qx, qw, sx, sw.t().contiguous(), px, pw)
    want = x.cpu().double() @ w.cpu().double().t()
    assert (y.cpu().double() - want).abs().max() <= 0.2 * want.abs().max()


def test_bad_arguments():
    good = inputs(3, 5, 64)

    def replaced(place, value):
        return [*good[:place], value, *good[place + 1 :]]

    for args, options, text in [
        (replaced(0, make(3, 32)), {}, "'x1' must be of dtype torch.uint8"),
        (replaced(1, good[1][:, :3]), {}, "'x2' must be of 32 columns, as 'x1', but received 3"),
        (replaced(2, good[2][:2]), {}, r"'x1_level0_scale' must be of shape \(3, 1\)"),
        (replaced(3, good[3].half()), {}, "'x2_level0_scale' must be of dtype torch.float32"),
        (replaced(5, good[5][:2]), {}, r"'x2_level1_scale' must be of shape \(5, 1, 2\)"),
        (good, {"bias": make(3)}, r"'bias' must be of shape \(5\)"),
        (good, {"output_dtype": 6}, "'output_dtype' must be the type float16 or bfloat16"),
    ]:
        with pytest.raises(RuntimeError, match="npu_dual_level_quant_matmul: argument " + text):
            torch_npu.npu_dual_level_quant_matmul(*args, **options)
    with on("A2"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_dual_level_quant_matmul(*good)
