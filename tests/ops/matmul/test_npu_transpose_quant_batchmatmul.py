"""npu_transpose_quant_batchmatmul against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.matmul.eights import HIFLOAT8, eights, hifloats, powers
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def compare(y, want, dtype):
    assert y.dtype == dtype and y.shape == want.shape and y.is_contiguous()
    eps = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert ((y.cpu().double() - want).abs() <= want.abs() * eps + want.abs().max() * 1e-5).all()


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_of_rows_and_columns(kind, dtype):
    (x1, a), (x2, b) = eights(3, 2, 512, dtype=kind), eights(2, 512, 128, dtype=kind, seed=1)
    s1, s2 = make(3, low=0, high=0.1), make(128, low=0)
    y = torch_npu.npu_transpose_quant_batchmatmul(x1, x2, dtype, x1_scale=s1, x2_scale=s2)
    want = torch.einsum("mbk,bkn->mbn", a, b) * s1.cpu().double()[:, None, None] * s2.cpu().double()
    compare(y, want, dtype)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("sizes", [[0, 0, 32], [1, 1, 32]])
def test_microscaling(swapped, sizes):
    (x1, a), (x2, b) = eights(3, 2, 128), eights(*((2, 5, 128) if swapped else (2, 128, 5)), seed=1)
    s1, p1 = powers(3, 2, 2, 2)
    s2, p2 = powers(*((2, 5, 2, 2) if swapped else (2, 2, 5, 2)), seed=1)
    y = torch_npu.npu_transpose_quant_batchmatmul(
        x1,
        x2,
        torch.bfloat16,
        x1_scale=s1.view(torch.float8_e8m0fnu),
        x2_scale=s2,
        group_sizes=sizes,
        perm_x1=[1, 0, 2],
        perm_x2=[0, 2, 1] if swapped else [0, 1, 2],
        perm_y=[1, 0, 2],
    )
    want = torch.zeros(3, 2, 5, dtype=torch.float64)
    for k in range(128):
        left = a[..., k] * p1[:, :, k // 64, k // 32 % 2]
        if swapped:
            right = b[:, :, k] * p2[:, :, k // 64, k // 32 % 2]
        else:
            right = b[:, k] * p2[:, k // 64, :, k // 32 % 2]
        want += left[..., None] * right
    compare(y, want, torch.bfloat16)


def packed(count):
    return torch_npu.npu_trans_quant_param(make(count, low=0.1))


def factors(words):
    """The floats in the lower halves of packed scales."""
    return (words.cpu() & 0xFFFFFFFF).int().view(torch.float32).double()


@pytest.mark.parametrize("single", [True, False])
def test_hifloat8(single):
    (x1, a), (x2, b) = hifloats(3, 2, 20), hifloats(2, 20, 6, seed=4)
    s1, s2 = packed(1) if single else None, packed(6)
    codes = {"x1_dtype": HIFLOAT8, "x2_dtype": HIFLOAT8}
    want = torch.einsum("mbk,bkn->mbn", a, b) * factors(s2)
    want = want * factors(s1) if single else want
    y = torch_npu.npu_transpose_quant_batchmatmul(
        x1, x2, torch.float16, x1_scale=s1, x2_scale=s2, **codes
    )
    compare(y, want, torch.float16)
    q = torch_npu.npu_transpose_quant_batchmatmul(
        x1, x2, HIFLOAT8, x1_scale=s1, x2_scale=s2, **codes
    )
    back = torch_npu.npu_dtype_cast(q, torch.float32, input_dtype=HIFLOAT8).cpu().double()
    assert q.dtype == torch.uint8 and ((back - want).abs() <= want.abs() / 8 + 1e-6).all()


def test_bad_arguments():
    (x1, _), (x2, _) = eights(3, 2, 64), eights(2, 64, 5)
    s1, s2 = powers(3, 2, 1, 2)[0], powers(2, 1, 5, 2)[0]
    for args, options, text in [
        ((x1, x2[0], 5), {}, "'x2' must be a tensor of 3 dimensions"),
        ((x1, x2, 5), {"x1_scale": s1}, "'x2_scale' must be given in the microscaling form"),
        ((x1, x2, 5), {}, "'x2_scale' must be given always"),
        (
            (x1, x2, 6),
            {"x1_scale": s1, "x2_scale": s2},
            "'dtype' must be the type float16 or bfloat",
        ),
        ((x1, x2, 5), {"perm_x1": [0, 1, 2]}, r"'perm_x1' must be \[1, 0, 2\]"),
        ((x1, x2, 5), {"batch_split_factor": 2}, "'batch_split_factor' must be None or 1"),
        (
            (x1, x2, 5),
            {"x1_scale": s1, "x2_scale": s2, "group_sizes": [1, 1, 64]},
            r"'group_sizes' must be \[0 or 1, 0 or 1, 32\]",
        ),
        ((x1, x2, 5), {"x1_dtype": 290}, "'x2_dtype' must be hifloat8 for both or none"),
        ((x1, x2, 5), {"x1_scale": s1, "x2_scale": s2}, r"'group_sizes' must be \[0 or 1, 0 or"),
        (
            (*(hifloats(*s)[0] for s in ((3, 2, 20), (2, 20, 6))), 5),
            {"x2_scale": make(6), "x1_dtype": 290, "x2_dtype": 290},
            "'x2_scale' must be of dtype torch.int64",
        ),
        ((x1[:0], x2, 5), {"x1_scale": s1, "x2_scale": s2}, "'x1' must be and 'x2' not empty"),
    ]:
        match = "npu_transpose_quant_batchmatmul: argument " + text
        with pytest.raises(RuntimeError, match=match):
            torch_npu.npu_transpose_quant_batchmatmul(*args, **options)
    with pytest.raises(NotImplementedError, match="'bias' must be left at None"):
        torch_npu.npu_transpose_quant_batchmatmul(x1, x2, 5, bias=make(5))
    with on("A2"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_transpose_quant_batchmatmul(x1, x2, 5, x1_scale=s1, x2_scale=s2)
