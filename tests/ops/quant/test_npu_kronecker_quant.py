"""npu_kronecker_quant against fp64 with the roundings in between."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm.quantized import rounds_to
from tests.ops.quant import mx
from tests.ops.support import make
from torch_npu import _dtypes


def product(x, p1, p2):
    first = (x.cpu().double() @ p2.cpu().double()).float().to(x.dtype).double()
    return (p1.cpu().double() @ first).float().to(x.dtype).double()


def inputs(m, n1, n2, dtype):
    """Small integers: the products are exact in half precision."""

    def whole(*shape, seed):
        return make(*shape, dtype=torch.int32, low=-2, high=3, seed=seed).to(dtype)

    return whole(m, n1, n2, seed=1), whole(n1, n1, seed=2), whole(n2, n2, seed=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 4, 16), (1, 1, 8), (5, 7, 24)])
@pytest.mark.parametrize("clip", [None, 0.6])
def test_int4(dtype, shape, clip):
    x, p1, p2 = inputs(*shape, dtype)
    out, scale = torch_npu.npu_kronecker_quant(x, p1, p2, clip)
    want = product(x, p1, p2)
    expected = want.abs().amax((1, 2)) * (clip or 1.0) / 7
    assert out.dtype == torch.int32 and out.shape == (*shape[:2], shape[2] // 8)
    torch.testing.assert_close(scale.cpu().double(), expected, rtol=1e-6, atol=0)
    divisor = torch.where(expected == 0, 1.0, expected)
    rounds_to(out, want / divisor[:, None, None])


@pytest.mark.parametrize("limit", [None, 0.0, 6.0, 9.0])
def test_float4_on_ascend950(limit):
    x, p1, p2 = inputs(3, 5, 26, torch.bfloat16)
    with on("A5"):
        out, scale = torch_npu.npu_kronecker_quant(x, p1, p2, dst_dtype=296, dst_type_max=limit)
    assert out.dtype == _dtypes.storage("float4_e2m1fn_x2") and scale.dtype == torch.float8_e8m0fnu
    flat = product(x, p1, p2).reshape(3, -1).numpy()
    options = {"alg": 2, "limit": limit} if limit else {}
    want = mx.quantize(flat, mx.E2M1, **options)
    mx.same(out.view(torch.uint8), scale.view(torch.uint8), want, mx.E2M1)


@pytest.mark.family("A2")
def test_bad_arguments():
    x, p1, p2 = inputs(2, 3, 16, torch.float16)
    for args, options, text in [
        ((x.float(), p1, p2), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        ((x, p1[:2], p2), {}, r"'kronecker_p1' must be of shape \(3, 3\)"),
        ((x, p1, p2.bfloat16()), {}, "'kronecker_p2' must be of the dtype of 'x'"),
        ((x[..., :12], p1, p2[:12, :12]), {}, "'x' must be of a last dimension divisible by 8"),
        ((x[:0], p1, p2), {}, r"'x' must be of sizes above 0, up to 262144.*\(0, 3, 16\)"),
        (inputs(1, 1, 264, torch.float16), {}, "'x' must be of sizes above 0.*264"),
        ((x, p1, p2), {"clip_ratio": 0.0}, r"'clip_ratio' must be in \(0, 1\]"),
        ((x, p1, p2), {"dst_dtype": 296}, "'dst_dtype' must be the type int32 or int4"),
    ]:
        with pytest.raises(RuntimeError, match="npu_kronecker_quant: argument " + text):
            torch_npu.npu_kronecker_quant(*args, **options)
    with on("310P"), pytest.raises(NotImplementedError, match="'device' must be of the family"):
        torch_npu.npu_kronecker_quant(x, p1, p2)
