"""_npu_rms_norm_backward_quant against autograd in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm import quantized
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def reference(dy, x, gamma, epsilon=1e-5):
    x = x.cpu().double().requires_grad_()
    gamma = gamma.cpu().double().requires_grad_()
    over = list(range(-gamma.dim(), 0))
    rstd = (x.pow(2).mean(over, keepdim=True) + epsilon).rsqrt()
    (x * rstd * gamma).backward(dy.cpu().double())
    return x.grad, gamma.grad, rstd.detach()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,over", [((2, 4, 64), (64,)), ((6, 3, 5), (3, 5)), ((4, 1), (1,))])
@pytest.mark.parametrize("divide", [True, False, None])
def test_gradients(dtype, shape, over, divide):
    dy, x = make(*shape, dtype=dtype, seed=1), make(*shape, dtype=dtype, seed=2)
    gamma = make(*over, seed=3)
    dx, dgamma, rstd = reference(dy, x, gamma)
    scale = torch.tensor([40.0 if divide is False else 0.03]).npu()
    offset = torch.tensor([4], dtype=torch.int32).npu()
    given = rstd.float().reshape(shape[: len(shape) - len(over)]).npu()
    q, got = torch_npu._npu_rms_norm_backward_quant(
        dy, x, given, gamma, scale, offset_x=offset, div_mode=divide
    )
    want = quantized.affine(dx, scale, offset, divide is not False)
    quantized.rounds_to(q, want)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu().double(), dgamma, rtol=1e-5, atol=1e-5)


def test_hifloat8():
    dy, x, gamma = make(6, 16, seed=1), make(6, 16, seed=2), make(16)
    dx, _, rstd = reference(dy, x, gamma)
    scale = torch.tensor([0.5]).npu()
    q, _ = torch_npu._npu_rms_norm_backward_quant(
        dy.t().contiguous().t(), x, rstd.flatten().float().npu(), gamma, scale, dst_type=290
    )
    back = torch_npu.npu_dtype_cast(q, torch.float32, input_dtype=290).cpu().double()
    assert q.dtype == torch.uint8
    assert ((back - dx / 0.5).abs() <= (dx / 0.5).abs() / 8 + 2.0**-22).all()


def test_bad_arguments():
    dy, x, gamma = make(4, 6), make(4, 6), make(6)
    rstd, scale = make(4), make(1)
    for args, options, text in [
        ((dy, x[:2], rstd, gamma, scale), {}, r"'x' must be of shape \(4, 6\)"),
        ((dy, x, rstd[:3], gamma, scale), {}, r"'rstd' must be of shape \(4\)"),
        ((dy, x, rstd[:, None], gamma, scale), {}, r"'rstd' must be of shape \(4\).*\(4, 1\)"),
        ((dy, x, rstd, gamma[:2], scale), {}, r"'gamma' must be of shape \(6\)"),
        ((dy, x, rstd, gamma, gamma), {}, r"'scale_x' must be of shape \(1\)"),
        (
            (dy, x, rstd, gamma, scale),
            {"offset_x": scale},
            "'offset_x' must be of dtype torch.int32",
        ),
        ((dy, x, rstd, gamma, scale), {"quant_mode": "dynamic"}, "'quant_mode' must be 'static'"),
        ((dy, x, rstd, gamma, scale), {"dst_type": 292}, "'dst_type' must be the type int8 or hif"),
    ]:
        with pytest.raises(RuntimeError, match="_npu_rms_norm_backward_quant: argument " + text):
            torch_npu._npu_rms_norm_backward_quant(*args, **options)
