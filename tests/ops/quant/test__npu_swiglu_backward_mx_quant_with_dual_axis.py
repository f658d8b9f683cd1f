"""_npu_swiglu_backward_mx_quant_with_dual_axis: autograd in fp64, rounded, then frexp and search along both axes."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import mx
from tests.ops.quant.test_npu_grouped_dynamic_mx_quant import reference
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def gradient(x, dy, left):
    """dx in fp64 by autograd, rounded to the dtype of x."""
    wide = x.cpu().double().requires_grad_()
    a, b = wide.chunk(2, -1) if left else reversed(wide.chunk(2, -1))
    (a * torch.sigmoid(a) * b).backward(dy.cpu().double())
    return wide.grad.to(x.dtype).double().numpy()


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("ends", [None, (70,), (3, 66, 70)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_axes(left, ends, dtype):
    x = make(70, 128, dtype=dtype, low=-4, high=4)
    dy = make(70, 64, dtype=dtype)
    index = None if ends is None else torch.tensor(ends).npu()
    y1, scale1, y2, scale2 = torch_npu._npu_swiglu_backward_mx_quant_with_dual_axis(
        x, dy, group_index=index, activate_left=left
    )
    dx = gradient(x, dy, left)
    mx.same(y1, scale1, mx.quantize(dx, mx.E4M3, -1, alg=1), mx.E4M3)
    if ends is None:
        want = mx.quantize(dx, mx.E4M3, 0, alg=1)
    else:
        want = reference(torch.from_numpy(dx), ends, mx.E4M3, alg=1)
    mx.same(y2, scale2, want, mx.E4M3)


def test_leading_dimensions():
    x, dy = make(2, 3, 40, 64, dtype=torch.float16), make(2, 3, 40, 32, dtype=torch.float16)
    whole = torch_npu._npu_swiglu_backward_mx_quant_with_dual_axis(x, dy)
    part = torch_npu._npu_swiglu_backward_mx_quant_with_dual_axis(x[1, 2], dy[1, 2])
    for got, want in zip(whole, part, strict=True):
        assert torch.equal(got[1, 2].view(torch.uint8), want.view(torch.uint8))


def test_bad_arguments():
    x, dy = make(4, 64, dtype=torch.float16), make(4, 32, dtype=torch.float16)
    for given, options, text in [
        ((x.float(), dy), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        (
            (x[:, :40], dy[:, :20]),
            {},
            r"'x' must be of a last dimension divisible by 64.*\(4, 40\)",
        ),
        ((x, dy[:, :30]), {}, r"'y_grad' must be of shape \(4, 32\)"),
        ((x, dy.bfloat16()), {}, "'y_grad' must be of the dtype of 'x'"),
        ((x, dy), {"scale_alg": 0}, "'scale_alg' must be 1"),
        ((x, dy), {"dst_type": 23}, "'dst_type' must be the type float8_e4m3fn"),
        ((x, dy), {"round_mode": "floor"}, "'round_mode' must be 'rint'"),
        ((x, dy), {"group_index": torch.tensor([5]).npu()}, "'group_index' must be in"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            torch_npu._npu_swiglu_backward_mx_quant_with_dual_axis(*given, **options)
