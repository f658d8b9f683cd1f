"""npu_geglu and its gradient against the formula, element by element."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import by_number
from tests.ops.families import on
from tests.ops.support import assert_accurate, gradcheck, make

CASES = [((4, 3, 32), -1), ((2, 6, 5, 3), 1), ((8, 5), 0), ((2, 4, 3), -2), ((1, 2), -1), ((2,), 0)]
OPTIONS = [(0, False), (0, True), (1, False), (1, True)]


def gelu(x, approximate):
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + math.tanh(inner))
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def slope(x, approximate):
    if approximate:
        c = math.sqrt(2 / math.pi)
        t = math.tanh(c * (x + 0.044715 * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)
    density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + math.erf(x / math.sqrt(2))) + x * density


def halves(x, dim, left):
    """The activated half and the other one."""
    size = x.shape[dim] // 2
    pair = x.narrow(dim, 0, size), x.narrow(dim, size, size)
    return pair if left else pair[::-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("approximate,left", OPTIONS)
@pytest.mark.parametrize("shape,dim", CASES)
def test_forward(shape, dim, approximate, left, dtype):
    x = make(*shape, dtype=dtype, low=-4, high=4)
    y, g = torch_npu.npu_geglu(x, dim, approximate, left)
    a, b = halves(x.cpu(), dim, left)
    assert y.dtype == g.dtype == dtype and y.is_contiguous() and g.is_contiguous()
    plain = torch.nn.functional.gelu(a, approximate="tanh" if approximate else "none")
    assert_accurate(g, by_number(lambda a: gelu(a, approximate), a), plain)
    assert_accurate(y, by_number(lambda a, b: gelu(a, approximate) * b, a, b), plain * b)


def test_defaults_are_the_last_dim_tanh_and_the_right_half():
    x = make(4, 6, low=-4, high=4)
    y, _ = torch_npu.npu_geglu(x)
    a, b = halves(x.cpu(), 1, False)
    want = by_number(lambda a, b: gelu(a, 1) * b, a, b)
    assert_accurate(y, want, want.float(), slack=2e-6)
    other = by_number(lambda a, b: gelu(a, 0) * b, a, b)
    assert (y.cpu().double() - other).abs().max() > 1e-5


def test_non_contiguous():
    x = make(8, 6, 4, low=-3, high=3).transpose(0, 2)
    a, b = halves(x.cpu(), -1, False)
    want = by_number(lambda a, b: gelu(a, 1) * b, a, b)
    assert_accurate(torch_npu.npu_geglu(x)[0], want, want.float(), slack=2e-6)


def test_empty():
    y, g = torch_npu.npu_geglu(make(0, 8))
    assert y.shape == g.shape == (0, 4)
    assert torch_npu.npu_geglu(make(3, 0))[0].shape == (3, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("approximate,left", OPTIONS)
@pytest.mark.parametrize("shape,dim", [((4, 3, 32), -1), ((2, 6, 5), 1)])
def test_backward_operator(shape, dim, approximate, left, dtype):
    x = make(*shape, dtype=dtype, low=-4, high=4)
    a, b = halves(x.cpu(), dim, left)
    grad = make(*a.shape, dtype=dtype)
    saved = torch.nn.functional.gelu(a, approximate="tanh" if approximate else "none")
    got = torch_npu.npu_geglu_grad(grad, x, saved.to(x.device), dim, approximate, left)
    g = grad.cpu()
    through = by_number(lambda g, a, b: g * b * slope(a, approximate), g, a, b)
    beside = by_number(lambda g, s: g * s, g, saved)
    want = torch.cat((through, beside) if left else (beside, through), dim)
    assert got.dtype == dtype and got.shape == x.shape
    assert_accurate(got, want, want.to(dtype), slack=2e-6)


@pytest.mark.parametrize("approximate,left", OPTIONS)
@pytest.mark.parametrize("dim", [-1, 0])
def test_gradients(dim, approximate, left):
    x = make(4, 6, dtype=torch.float64, low=-3, high=3, requires_grad=True)
    gradcheck(lambda x: torch_npu.npu_geglu(x, dim, approximate, left)[0], x)


def test_the_gelu_is_not_differentiable():
    y, g = torch_npu.npu_geglu(make(4, 6, requires_grad=True))
    assert y.requires_grad and not g.requires_grad


def test_odd_size():
    with pytest.raises(
        RuntimeError,
        match=r"npu_geglu: argument 'self' must be of even size in dimension 1.*\(4, 7\)",
    ):
        torch_npu.npu_geglu(make(4, 7), 1)


def test_dim_out_of_range():
    with pytest.raises(RuntimeError, match=r"argument 'dim' must be in \[-2, 1\], but received 2"):
        torch_npu.npu_geglu(make(4, 8), 2)


def test_bad_approximate():
    with pytest.raises(RuntimeError, match="argument 'approximate' must be 0 or 1, but received 2"):
        torch_npu.npu_geglu(make(4, 8), -1, 2)


def test_no_bfloat16_on_old_chips():
    with on("310P"), pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"):
        torch_npu.npu_geglu(make(4, 8, dtype=torch.bfloat16))


def test_backward_bad_gelu():
    with pytest.raises(
        RuntimeError, match=r"npu_geglu_grad: argument 'gelu' must be of shape \(4, 4\).*\(4, 8\)"
    ):
        torch_npu.npu_geglu_grad(make(4, 4), make(4, 8), make(4, 8))
