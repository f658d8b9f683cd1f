"""npu_add_layer_norm and its gradient against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

SHAPES = [
    ((4, 7, 96), (96,)),
    ((2, 3, 5, 8), (5, 8)),
    ((0, 16), (16,)),
    ((33,), (33,)),
    ((3, 1), (1,)),
]


def reference(x1, x2, gamma, beta, eps):
    x = x1 + x2
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    mean = x.mean(dims, keepdim=True)
    rstd = 1 / torch.sqrt(((x - mean) ** 2).mean(dims, keepdim=True) + eps)
    rows = (*x.shape[: dims[0]], 1)
    return (x - mean) * rstd * gamma + beta, mean.reshape(rows), rstd.reshape(rows), x


def inputs(shape, norm, dtype):
    return (
        make(*shape, dtype=dtype),
        make(*shape, dtype=dtype, seed=7, high=3),
        make(*norm, dtype=dtype),
        make(*norm, dtype=dtype, seed=8),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,norm", SHAPES)
def test_forward(shape, norm, dtype):
    tensors = inputs(shape, norm, dtype)
    got = torch_npu.npu_add_layer_norm(*tensors, 1e-3, True)
    wants = reference(*(t.cpu().double() for t in tensors), 1e-3)
    plains = reference(*(t.cpu() for t in tensors), 1e-3)
    assert [t.dtype for t in got] == [dtype, torch.float32, torch.float32, dtype]
    for have, want, plain in zip(got, wants, plains, strict=True):
        assert_accurate(have, want, plain)


@pytest.mark.parametrize(
    "first,second", [(torch.float16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_mixed_dtypes_give_float32(first, second):
    x1, x2, gamma, beta = inputs((4, 16), (16,), torch.float32)
    x1, x2 = x1.to(first), x2.to(second)
    got = torch_npu.npu_add_layer_norm(x1, x2, gamma, beta, 1e-5, True)
    wants = reference(*(t.cpu().double() for t in (x1, x2, gamma, beta)), 1e-5)
    assert {t.dtype for t in got} == {torch.float32}
    for have, want in zip(got, wants, strict=True):
        assert_accurate(have, want, want.float())


def test_float32_gamma_of_half_input():
    x1, x2, gamma, beta = inputs((4, 16), (16,), torch.float32)
    y, *_ = torch_npu.npu_add_layer_norm(x1.half(), x2.half(), gamma, beta)
    halves = (x1.half(), x2.half(), gamma, beta)
    want, *_ = reference(*(t.cpu().double() for t in halves), 1e-5)
    assert y.dtype == torch.float16
    assert_accurate(y, want, want.half())


def test_without_the_sum():
    y, mean, rstd, x = torch_npu.npu_add_layer_norm(*inputs((4, 16), (16,), torch.float32))
    full = torch_npu.npu_add_layer_norm(*inputs((4, 16), (16,), torch.float32), 1e-5, True)
    for have, want in zip((y, mean, rstd), full, strict=False):
        assert torch.equal(have, want)
    assert x.shape == y.shape and not x.any()


def test_non_contiguous():
    tensors = make(8, 6, 4).transpose(0, 2), make(8, 6, 4, seed=2).transpose(0, 2), make(8), make(8)
    y, *_ = torch_npu.npu_add_layer_norm(*tensors)
    want, *_ = reference(*(t.cpu().double() for t in tensors), 1e-5)
    assert_accurate(y, want, want.float())


@pytest.mark.parametrize("shape,norm", [((3, 4), (4,)), ((2, 2, 3), (2, 3)), ((5,), (5,))])
@pytest.mark.parametrize("outputs", [(0,), (0, 3)])
def test_gradients(shape, norm, outputs):
    tensors = [t.requires_grad_() for t in inputs(shape, norm, torch.float64)]

    def run(*tensors):
        found = torch_npu.npu_add_layer_norm(*tensors, 1e-3, len(outputs) == 2)
        return tuple(found[i] for i in outputs)

    gradcheck(run, *tensors)


def test_half_gradients_have_the_dtype_of_their_tensors():
    x1, x2, gamma, beta = inputs((4, 16), (16,), torch.float32)
    leaves = [t.detach().requires_grad_() for t in (x1.half(), x2, gamma, beta)]
    torch_npu.npu_add_layer_norm(*leaves)[0].sum().backward()
    assert [t.grad.dtype for t in leaves] == [t.dtype for t in leaves]


def test_backward_operator_without_either_gradient():
    x1, x2, gamma, beta = inputs((4, 16), (16,), torch.float32)
    _, mean, rstd, _ = torch_npu.npu_add_layer_norm(x1, x2, gamma, beta)
    dsum = make(4, 16, seed=5)
    dx1, dx2, dgamma, dbeta = torch_npu.npu_add_layer_norm_backward(
        None, x1, x2, rstd, mean, gamma, dsum
    )
    assert torch.equal(dx1, dsum) and torch.equal(dx2, dsum)
    assert not dgamma.any() and not dbeta.any()
    dy = make(4, 16, seed=6)
    got = torch_npu.npu_add_layer_norm_backward(dy, x1, x2, rstd, mean, gamma, None)
    leaves = [t.cpu().double().requires_grad_() for t in (x1, x2, gamma, beta)]
    reference(*leaves, 1e-5)[0].backward(dy.cpu().double())
    for have, leaf in zip(got, leaves, strict=True):
        assert_accurate(have, leaf.grad, leaf.grad.float(), slack=1e-5)


def test_shapes_differ():
    with pytest.raises(
        RuntimeError, match=r"npu_add_layer_norm: argument 'x2' must be of shape \(2, 8\).*\(1, 8\)"
    ):
        torch_npu.npu_add_layer_norm(make(2, 8), make(1, 8), make(8), make(8))


def test_two_half_types():
    x = make(2, 8, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="argument 'x2' must be of dtype .*bfloat16"):
        torch_npu.npu_add_layer_norm(x, x.bfloat16(), make(8), make(8))


def test_beta_dtype():
    with pytest.raises(RuntimeError, match="argument 'beta' must be of the dtype of 'gamma'"):
        torch_npu.npu_add_layer_norm(make(2, 8), make(2, 8), make(8), make(8, dtype=torch.float16))


def test_backward_rstd_shape():
    x = make(2, 8)
    with pytest.raises(RuntimeError, match=r"argument 'rstd' must be of shape \(2, 1\).*\(2,\)"):
        torch_npu.npu_add_layer_norm_backward(x, x, x, make(2), make(2, 1), make(8), None)


def test_gamma_of_mixed_addends():
    x1, gamma = make(4, 16, dtype=torch.float16), make(16, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="argument 'gamma' must be of dtype torch.float32"):
        torch_npu.npu_add_layer_norm(x1, make(4, 16), gamma, gamma)
