"""npu_rotate_quant: the product in fp64, rounded, then the reference of each quantization."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm.quantized import rounds_to
from tests.ops.quant import mx
from tests.ops.support import make


def turned(x, rotation, alpha=None):
    size = rotation.shape[0]
    parts = x.cpu().double().reshape(-1, size) @ rotation.cpu().double()
    y = parts.reshape(x.shape).float().to(x.dtype).double()
    if alpha is not None and 0 < alpha < 1:
        for row in range(y.shape[0]):
            for start in range(0, y.shape[1], 32):
                part = y[row, start : start + 32]
                limit = float(part.abs().max()) * alpha
                y[row, start : start + 32] = part.clamp(-limit, limit)
        y = y.float().to(x.dtype).double()
    return y


def powers_of_two(size, dtype):
    """A rotation whose product is exact: a permutation with signs and powers of two."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    matrix = torch.zeros(size, size)
    matrix[torch.arange(size), order] = torch.tensor([2.0, -1.0, 0.5, 4.0]).repeat(size)[:size]
    return matrix.to(dtype).npu()


@pytest.mark.parametrize("code,top", [(None, 127), (torch.int8, 127), (torch.quint4x2, 7)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [16, 32, 96])
def test_integers(code, top, dtype, size):
    x, rotation = make(5, 192, dtype=dtype), make(size, size, dtype=dtype)
    y, scale = torch_npu.npu_rotate_quant(x, rotation, dst_dtype=code)
    want = turned(x, rotation)
    torch.testing.assert_close(scale.cpu().double(), want.abs().amax(-1) / top, rtol=1e-2, atol=0)
    rounds_to(y, want / scale.cpu().double()[:, None], slack=0.6)
    exact = powers_of_two(size, dtype)
    y, scale = torch_npu.npu_rotate_quant(x, exact, dst_dtype=code)
    want = turned(x, exact)
    torch.testing.assert_close(scale.cpu().double(), want.abs().amax(-1) / top, rtol=1e-6, atol=0)
    rounds_to(y, want / scale.cpu().double()[:, None])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 0.0])
def test_clipped(alpha):
    x, rotation = make(4, 96, dtype=torch.bfloat16), powers_of_two(32, torch.bfloat16)
    part = torch.tensor([alpha], dtype=torch.bfloat16).npu()
    with on("A5"):
        y, scale = torch_npu.npu_rotate_quant(x, rotation, alpha=part, dst_dtype=mx.E4M3)
    want = mx.quantize(turned(x, rotation, alpha).numpy(), mx.E4M3)
    mx.same(y, scale.view(torch.uint8), want, mx.E4M3)


def test_a_matrix_for_each_block():
    x = make(2, 3, 96, dtype=torch.bfloat16)
    rotation = torch.stack([powers_of_two(32, torch.bfloat16) * 2**n for n in range(3)])
    with on("A5"):
        y, scale = torch_npu.npu_rotate_quant(x, rotation, dst_dtype=mx.E4M3, axis=2)
    parts = [turned(x[..., 32 * n : 32 * n + 32].reshape(6, 32), rotation[n]) for n in range(3)]
    want = mx.quantize(torch.cat(parts, -1).reshape(2, 3, 96).numpy(), mx.E4M3)
    mx.same(y, scale.view(torch.uint8), want, mx.E4M3)


@pytest.mark.parametrize(
    "dst,options",
    [
        (mx.E4M3, {}),
        (mx.E5M2, {"scale_alg": 1}),
        (mx.E2M1, {"round_mode": "floor"}),
        (mx.E2M1, {"scale_alg": 2, "dst_type_max": 8.0, "round_mode": "round"}),
        (mx.E2M1, {"axis": 1}),
    ],
)
def test_microscaling_on_ascend950(dst, options):
    x, rotation = mx.spread(40, 96, low=-3, high=3), powers_of_two(32, torch.bfloat16)
    with on("A5"):
        y, scale = torch_npu.npu_rotate_quant(x, rotation, dst_dtype=dst, **options)
    names = {"round_mode": "mode", "scale_alg": "alg", "dst_type_max": "limit", "axis": "axis"}
    want = mx.quantize(
        turned(x, rotation).numpy(), dst, **{names[k]: v for k, v in options.items()}
    )
    assert scale.dtype == torch.float8_e8m0fnu
    mx.same(y, scale.view(torch.uint8), want, dst)


def test_bad_arguments():
    x, rotation = make(4, 128, dtype=torch.float16), make(16, 16, dtype=torch.float16)
    for args, options, text in [
        ((x.float(), rotation), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        ((x, rotation.bfloat16()), {}, "'rotation' must be of the dtype of 'x'"),
        ((x, rotation[:4]), {}, r"'rotation' must be of shape \(16, 16\)"),
        ((x, rotation[:8, :8]), {}, "'rotation' must be of 16 to 1024 columns, but received 8"),
        ((x[:, :120], rotation), {}, "'x' must be of a last dimension divisible by 16"),
        ((x[:, :96], rotation), {}, "'x' must be of a last dimension divisible by 8, from 128"),
        ((x, rotation), {"transpose_y": True}, "'transpose_y' must be False"),
        ((x, rotation), {"dst_dtype": 292}, "'dst_dtype' must be the type int8 or int4"),
        ((x, rotation), {"axis": 0}, "'axis' must be -1 or 1, but received 0"),
        ((x, rotation), {"round_mode": "floor"}, "'round_mode' must be None or 'rint'"),
    ]:
        with pytest.raises(RuntimeError, match="npu_rotate_quant: argument " + text):
            torch_npu.npu_rotate_quant(*args, **options)
    with pytest.raises(NotImplementedError, match="'alpha' must be left at None"):
        torch_npu.npu_rotate_quant(x, rotation, alpha=make(1, dtype=torch.bfloat16))
    wide = make(32, 32, dtype=torch.float16)
    with on("A5"):
        for options, text in [
            ({}, "'dst_dtype' must be the type float8_e4m3fn"),
            ({"dst_dtype": 292, "alpha": make(1)}, "'alpha' must be of dtype torch.bfloat16"),
            ({"dst_dtype": 292, "axis": 0}, "'axis' must be -1 or 1, but received 0"),
            ({"dst_dtype": 296, "dst_type_max": 8.0}, "'dst_type_max' must be from 6 to 12 for"),
        ]:
            with pytest.raises(RuntimeError, match=text):
                torch_npu.npu_rotate_quant(x, wide, **options)
        with pytest.raises(RuntimeError, match="'rotation' must be of 32, 64 or 128 columns"):
            torch_npu.npu_rotate_quant(x, rotation, dst_dtype=292)
