"""npu_dequant_bias against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("bias", [None, torch.int32, torch.float32, torch.float16, torch.bfloat16])
def test_values(half, rows, bias):
    x = make(5, 12, dtype=torch.int32, low=-100000, high=100000)
    dtype = torch.float16 if half else torch.bfloat16
    weight = make(12, dtype=torch.float32 if half else torch.bfloat16, low=0, high=0.01)
    active = make(5, low=0) if rows else None
    b = None if bias is None else make(12, dtype=bias, low=-50, high=50)
    y = torch_npu.npu_dequant_bias(x, weight, active, b, output_dtype=None if half else dtype)
    want = x.cpu().double() + (b.cpu().double() if bias == torch.int32 else 0)
    want = want * weight.cpu().double() * (active.cpu().double()[:, None] if rows else 1)
    want = want + (b.cpu().double() if bias not in (None, torch.int32) else 0)
    assert y.dtype == dtype
    eps = 2.0**-11 if half else 2.0**-8
    assert ((y.cpu().double() - want).abs() <= want.abs() * eps * 1.01 + 1e-4).all()


def test_strides_and_empty():
    x = make(12, 5, dtype=torch.int32, low=-9, high=9).t()
    y = torch_npu.npu_dequant_bias(x, make(12), None, None)
    assert torch.equal(y, torch_npu.npu_dequant_bias(x.contiguous(), make(12), None, None))
    assert torch_npu.npu_dequant_bias(x[:0], make(12), None, None).shape == (0, 12)


def test_bad_arguments():
    x, weight = make(3, 8, dtype=torch.int32, low=-9, high=9), make(8)
    for args, options, text in [
        ((x.float(), weight, None, None), {}, "'x' must be of dtype torch.int32"),
        ((x, weight[:3], None, None), {}, r"'weight_scale' must be of shape \(8\)"),
        ((x, weight.bfloat16(), None, None), {}, "'weight_scale' must be of dtype torch.float32"),
        ((x, weight, weight, None), {}, r"'activation_scale' must be of shape \(3\)"),
        ((x, weight, None, weight[:2]), {}, r"'bias' must be of shape \(8\)"),
        (
            (x, weight, None, None),
            {"output_dtype": torch.float32},
            "'output_dtype' must be None, torch.float16 or torch.bfloat16",
        ),
    ]:
        with pytest.raises(RuntimeError, match="npu_dequant_bias: argument " + text):
            torch_npu.npu_dequant_bias(*args, **options)
