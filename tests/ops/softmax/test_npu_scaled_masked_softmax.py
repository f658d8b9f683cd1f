"""npu_scaled_masked_softmax against the definition in fp64, row by row."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, gradcheck, make


def reference(x, mask, scale):
    """exp(z - max z) / sum, with z written out element by element."""
    z = torch.where(mask, torch.full_like(x, -10000.0), x * scale)
    e = torch.exp(z - z.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape,mask_shape,scale",
    [
        ((2, 3, 32, 64), (2, 3, 32, 64), 1),
        ((2, 3, 32, 64), (2, 1, 32, 64), 0.125),
        ((1, 1, 96, 32), (1, 1, 1, 32), -3),
        ((4, 32, 32), (32, 32), 2.5),
        ((32, 160), (160,), 1.0),
        ((0, 2, 32, 32), (1, 1, 32, 32), 1.0),
    ],
)
def test_forward(dtype, shape, mask_shape, scale):
    x, mask = make(*shape, dtype=dtype, low=-5, high=5), make(*mask_shape, dtype=torch.bool)
    y = torch_npu.npu_scaled_masked_softmax(x, mask, scale, False)
    assert y.dtype == dtype and y.shape == x.shape
    plain = (x.cpu() * scale).masked_fill(mask.cpu(), -10000).softmax(-1)
    assert_accurate(y, reference(x.cpu().double(), mask.cpu(), scale), plain)


def test_default_scale_is_one():
    x, mask = make(32, 32), make(32, 32, dtype=torch.bool)
    got = torch_npu.npu_scaled_masked_softmax(x, mask)
    assert torch.equal(got, torch_npu.npu_scaled_masked_softmax(x, mask, 1.0, False))


def test_one_row_by_hand():
    x = torch.zeros(32, 32)
    x[0, 0] = math.log(3.0)
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[0, 2:] = True
    got = torch_npu.npu_scaled_masked_softmax(x.to(make(1).device), mask.to(make(1).device)).cpu()
    assert got[0, :3].tolist() == pytest.approx([0.75, 0.25, 0.0])


def test_fully_masked_row_is_uniform():
    x, mask = make(32, 64), torch.ones(32, 64, dtype=torch.bool).to(make(1).device)
    got = torch_npu.npu_scaled_masked_softmax(x, mask, 7.0).cpu()
    assert torch.allclose(got, torch.full((32, 64), 1 / 64))


def test_non_contiguous():
    x, mask = make(64, 32, 3).transpose(0, 2), make(64, 32, dtype=torch.bool).t()
    got = torch_npu.npu_scaled_masked_softmax(x, mask, 2.0)
    want = reference(x.cpu().double(), mask.cpu(), 2.0)
    assert_accurate(got, want, want.float())


def test_gradients():
    x = make(2, 3, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 1:3] = mask[2] = True
    mask = mask.to(x.device)
    gradcheck(lambda a: torch_npu.npu_scaled_masked_softmax(a, mask, 0.7), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_backward_operator(dtype):
    dy, mask = make(2, 32, 64, dtype=dtype), make(2, 32, 64, dtype=torch.bool)
    y = reference(make(2, 32, 64, seed=5).cpu().double(), mask.cpu(), 0.5).to(dtype)
    got = torch_npu.npu_scaled_masked_softmax_backward(dy, y.to(dy.device), mask, 0.5, False)
    g, p = dy.cpu().double(), y.double()
    want = (g * p - (g * p).sum(-1, keepdim=True) * p) * 0.5
    want[mask.cpu()] = 0
    g, p = dy.cpu(), y
    plain = ((g * p - (g * p).sum(-1, keepdim=True) * p) * 0.5).masked_fill(mask.cpu(), 0)
    assert got.dtype == dtype
    assert_accurate(got, want, plain)


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="npu_scaled_masked_softmax: argument 'x' .*float64"):
        torch_npu.npu_scaled_masked_softmax(
            make(32, 32, dtype=torch.float64), make(32, 32, dtype=torch.bool)
        )


def test_bad_mask_dtype():
    with pytest.raises(RuntimeError, match="argument 'mask' must be of dtype torch.bool.*float32"):
        torch_npu.npu_scaled_masked_softmax(make(32, 32), make(32, 32))


@pytest.mark.parametrize("shape", [(16, 32), (32, 48), (32, 4128)])
def test_bad_sizes(shape):
    with pytest.raises(RuntimeError, match=r"'x' must be .* multiples of 32, but received"):
        torch_npu.npu_scaled_masked_softmax(make(*shape), make(shape[1], dtype=torch.bool))


def test_mask_that_does_not_broadcast():
    with pytest.raises(RuntimeError, match=r"argument 'mask' must be .*\(32, 64\), .*\(2, 64\)"):
        torch_npu.npu_scaled_masked_softmax(make(32, 64), make(2, 64, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fixed_triu_mask_hides_what_is_ahead(dtype):
    x = make(2, 32, 64, dtype=dtype).requires_grad_()
    nothing = torch.zeros(2, 32, 64, dtype=torch.bool, device=x.device)
    y = torch_npu.npu_scaled_masked_softmax(x, nothing, 0.5, True)
    ahead = torch.arange(64)[None, :] > torch.arange(32)[:, None]
    want = reference(x.detach().cpu().double(), ahead.expand(2, 32, 64), 0.5)
    assert_accurate(y, want, want.to(dtype))
    (y * make(2, 32, 64, dtype=dtype)).sum().backward()
    assert (x.grad.cpu()[ahead.expand(2, 32, 64)] == 0).all() and (x.grad != 0).any()


def test_sizes_of_ascend950():
    x, mask = make(2, 3, 5, 70), make(1, 3, 5, 70, dtype=torch.bool)
    with on("A5"):
        y = torch_npu.npu_scaled_masked_softmax(x, mask, 0.5)
        want = reference(x.cpu().double(), mask.cpu().expand(2, 3, 5, 70), 0.5)
        assert_accurate(y, want, want.float())
        with pytest.raises(RuntimeError, match="argument 'fixed_triu_mask' must be False"):
            torch_npu.npu_scaled_masked_softmax(x, mask, 0.5, True)
        with pytest.raises(RuntimeError, match="argument 'x' must be a tensor of 4 dimensions"):
            torch_npu.npu_scaled_masked_softmax(x[0], mask, 0.5)
        with pytest.raises(RuntimeError, match="argument 'mask' must be of shape"):
            torch_npu.npu_scaled_masked_softmax(x, mask[..., :1, :], 0.5)
