"""npu_deep_norm and its backward against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make, max_error


def formula(x, gx, beta, gamma, alpha=0.3, eps=1e-6):
    dims = tuple(range(-gamma.dim(), 0))
    z = alpha * x + gx
    mean = z.mean(dims, keepdim=True)
    rstd = 1 / (((z - mean) ** 2).mean(dims, keepdim=True) + eps).sqrt()
    return mean, rstd, gamma * (z - mean) * rstd + beta


def inputs(shape, normal, dtype):
    sizes = (shape, shape, normal, normal)
    return [make(*s, dtype=dtype, seed=i) for i, s in enumerate(sizes)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,normal", [((3, 4, 16), (16,)), ((2, 3, 8), (3, 8)), ((1, 9), (9,))])
def test_forward(shape, normal, dtype):
    given = inputs(shape, normal, dtype)
    got = torch_npu.npu_deep_norm(*given, alpha=0.7, epsilon=1e-3)
    want = formula(*(t.cpu().double() for t in given), 0.7, 1e-3)
    for mine, theirs in zip(got[:2], want[:2], strict=True):
        assert mine.dtype == torch.float32 and max_error(mine, theirs) < 1e-5
    assert got[2].dtype == dtype
    assert_accurate(got[2], want[2], want[2].to(dtype), slack=5e-6)


def test_defaults():
    given = inputs((3, 8), (8,), torch.float32)
    want = torch_npu.npu_deep_norm(*given, alpha=0.3, epsilon=1e-6)
    for a, b in zip(torch_npu.npu_deep_norm(*given), want, strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_backward_operator():
    x, gx, beta, gamma = inputs((4, 3, 8), (8,), torch.float16)
    dy = make(4, 3, 8, dtype=torch.float16, seed=9)
    leaves = [t.cpu().double().requires_grad_() for t in (x, gx, beta, gamma)]
    mean, rstd, y = formula(*leaves, 0.5)
    y.backward(dy.cpu().double())
    saved = [t.detach().float().to(x.device) for t in (mean, rstd)]
    got = torch_npu.npu_deep_norm_backward(dy, x, gx, gamma, *saved, 0.5)
    for mine, leaf in zip(got, leaves, strict=True):
        kind = torch.float16 if leaf.shape == x.shape else torch.float32
        assert mine.dtype == kind
        assert_accurate(mine, leaf.grad, leaf.grad.to(kind), slack=1e-5)


def test_gradients():
    given = [
        t.to("npu", torch.float64).requires_grad_() for t in inputs((3, 5), (5,), torch.float32)
    ]
    gradcheck(lambda *g: torch_npu.npu_deep_norm(*g)[2], *given)


def test_only_the_result_is_differentiable():
    given = [t.requires_grad_() for t in inputs((3, 5), (5,), torch.float32)]
    assert [t.requires_grad for t in torch_npu.npu_deep_norm(*given)] == [False, False, True]


@pytest.mark.parametrize(
    "index,shape,message",
    [
        (1, (3, 6), r"'gx' must be of shape \(3, 5\).*\(3, 6\)"),
        (2, (4,), r"'beta' must be of shape \(5\).*\(4,\)"),
        (3, (4,), r"'gamma' must be of shape \(5\).*\(4,\)"),
    ],
)
def test_refusals(index, shape, message):
    given = inputs((3, 5), (5,), torch.float32)
    given[index] = make(*shape)
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_deep_norm(*given)


def test_ranks():
    with pytest.raises(RuntimeError, match="argument 'x' must be a tensor of 2 to 8 dimensions"):
        torch_npu.npu_deep_norm(*inputs((9,), (9,), torch.float32))
    with pytest.raises(RuntimeError, match="argument 'gamma' must be a tensor of 1 dimensions"):
        torch_npu.npu_deep_norm(*inputs((2, 9), (2, 9), torch.float32))
