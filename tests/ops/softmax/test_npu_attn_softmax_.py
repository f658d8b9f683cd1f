"""npu_attn_softmax_ and npu_attn_softmax_backward_ against autograd in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4, 4), (1, 1, 1)])
def test_softmax_and_gradient(dtype, shape):
    scores = make(*shape, dtype=dtype, low=-3, high=3)
    gradient = make(*shape[:-1], 6, dtype=dtype, seed=1)
    values = make(*shape[:-2], shape[-1], 6, dtype=dtype, seed=2)
    plain = scores.cpu().double().requires_grad_()
    weights = plain.softmax(-1)
    (weights @ values.cpu().double()).backward(gradient.cpu().double())
    found = torch_npu.npu_attn_softmax_(scores)
    assert found.data_ptr() == scores.data_ptr()
    assert_accurate(scores, weights.detach(), weights.detach().to(dtype))
    found = torch_npu.npu_attn_softmax_backward_(scores, gradient, values)
    assert found.data_ptr() == scores.data_ptr()
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(scores.cpu().double(), plain.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "gradient,values,message",
    [
        ((2, 3, 4), (2, 4, 4), r"'values' must be of shape \(2, 5, 4\)"),
        ((2, 2, 4), (2, 5, 4), r"'grad_output' must be of shape \(2, 3, \*\)"),
    ],
)
def test_refusals(gradient, values, message):
    with pytest.raises(RuntimeError, match=f"npu_attn_softmax_backward_: argument {message}"):
        torch_npu.npu_attn_softmax_backward_(make(2, 3, 5), make(*gradient), make(*values))


def test_integers_are_refused():
    with pytest.raises(RuntimeError, match="npu_attn_softmax_: argument 'self' must be of dtype"):
        torch_npu.npu_attn_softmax_(make(3, 4, dtype=torch.int32, low=0, high=4))


def test_a_scalar_and_chips():
    x = make()
    torch_npu.npu_attn_softmax_(x)
    assert float(x) == 1.0
    with pytest.raises(RuntimeError, match="'self' must be a tensor of 0 to 8 dimensions"):
        torch_npu.npu_attn_softmax_(make(*[1] * 9))
    with on("310P"), pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"):
        torch_npu.npu_attn_softmax_(make(3, dtype=torch.bfloat16))
