"""npu_group_norm_swish and its gradient against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.norm._groups import group_norm
from tests.ops.support import assert_accurate, gradcheck, make

SHAPES = [((3, 3), 3), ((3, 6, 7, 2), 2), ((2, 5, 4), 1), ((1, 4, 1), 2), ((2, 4, 1, 2, 3), 4)]


def swish(z, scale):
    return z / (1 + torch.exp(-scale * z))


def inputs(shape, dtype):
    x = make(*shape, dtype=dtype, low=-1, high=3)
    return x, make(shape[1], dtype=dtype, low=0.5, high=2), make(shape[1], dtype=dtype, seed=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,groups", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_forward(shape, groups, dtype, scale):
    x, weight, bias = inputs(shape, dtype)
    got = torch_npu.npu_group_norm_swish(x, groups, weight, bias, eps=1e-3, swish_scale=scale)
    wide = [t.cpu().double() for t in (x, weight, bias)]
    y, mean, rstd = group_norm(wide[0], groups, wide[1], wide[2], 1e-3)
    z, m, r = group_norm(x.cpu(), groups, weight.cpu(), bias.cpu(), 1e-3)
    references = (swish(y, scale), mean, rstd)
    for have, want, plain in zip(got, references, (swish(z, scale), m, r), strict=True):
        assert have.dtype == dtype
        assert_accurate(have, want, plain)


def test_defaults_and_none():
    x, weight, bias = inputs((2, 4, 3), torch.float32)
    x = x * 1e-3
    want = torch_npu.npu_group_norm_swish(x, 2, weight, bias, 1e-5, 1.0)
    for got in (
        torch_npu.npu_group_norm_swish(x, 2, weight, bias),
        torch_npu.npu_group_norm_swish(x, 2, weight, bias, None, None),
    ):
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_empty_batch():
    y, mean, rstd = torch_npu.npu_group_norm_swish(make(0, 4, 3), 2, make(4), make(4))
    assert y.shape == (0, 4, 3) and mean.shape == rstd.shape == (0, 2)


def test_non_contiguous():
    x, weight, bias = make(5, 6, 4).transpose(0, 2), make(6), make(6, seed=4)
    got = torch_npu.npu_group_norm_swish(x, 3, weight, bias)
    want = group_norm(x.cpu().double(), 3, weight.cpu().double(), bias.cpu().double(), 1e-5)
    assert_accurate(got[0], swish(want[0], 1), swish(want[0], 1).float())


@pytest.mark.parametrize("shape,groups", SHAPES)
def test_gradients(shape, groups):
    tensors = [t.detach().requires_grad_() for t in inputs(shape, torch.float64)]
    gradcheck(
        lambda x, w, b: torch_npu.npu_group_norm_swish(x, groups, w, b, 1e-2, 0.7)[0], *tensors
    )


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, True], [True, True, False]])
def test_gradient_operator(mask):
    x, weight, bias = inputs((2, 6, 5), torch.float32)
    grad = make(2, 6, 5, seed=9)
    leaves = [t.cpu().double().requires_grad_() for t in (x, weight, bias)]
    z = torch.nn.functional.group_norm(leaves[0], 3, leaves[1], leaves[2])
    swish(z, 1.5).backward(grad.cpu().double())
    _, mean, rstd = torch_npu.npu_group_norm_swish(x, 3, weight, bias)
    got = torch_npu.npu_group_norm_swish_grad(
        grad, x, 3, weight, bias, mean, rstd, mask, swish_scale=1.5
    )
    for have, leaf, wanted in zip(got, leaves, mask, strict=True):
        want = leaf.grad if wanted else torch.zeros_like(leaf)
        assert_accurate(have, want, want.float(), slack=1e-5)


def test_half_gradients_have_the_dtype_of_their_tensors():
    tensors = [t.requires_grad_() for t in inputs((2, 6, 5), torch.float16)]
    torch_npu.npu_group_norm_swish(tensors[0], 2, *tensors[1:])[0].sum().backward()
    assert [t.grad.dtype for t in tensors] == [torch.float16] * 3


def test_groups_must_divide():
    with pytest.raises(
        RuntimeError,
        match="npu_group_norm_swish: argument 'num_groups' must be a divisor of the 6 channels.* 4",
    ):
        torch_npu.npu_group_norm_swish(make(2, 6), 4, make(6), make(6))


def test_weight_dtype():
    narrow = make(6, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="argument 'weight' must be of dtype .*float16"):
        torch_npu.npu_group_norm_swish(make(2, 6), 2, narrow, narrow)
    with pytest.raises(RuntimeError, match="argument 'bias' must be of the dtype of 'weight'"):
        torch_npu.npu_group_norm_swish(make(2, 6, dtype=torch.float16), 2, make(6), narrow)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_wider_weight(dtype):
    x, weight, bias = inputs((2, 6, 5), dtype)
    weight, bias = weight.float() + 1e-4, bias.float()
    y, mean, _ = torch_npu.npu_group_norm_swish(x, 2, weight, bias)
    wide = [t.cpu().double() for t in (x, weight, bias)]
    z, m, _ = group_norm(wide[0], 2, wide[1], wide[2], 1e-5)
    assert y.dtype == mean.dtype == dtype
    assert_accurate(y, swish(z, 1.0), swish(z, 1.0).to(dtype))
    assert_accurate(mean, m, m.to(dtype))


def test_bias_shape():
    with pytest.raises(RuntimeError, match=r"argument 'bias' must be of shape \(6\).*\(5,\)"):
        torch_npu.npu_group_norm_swish(make(2, 6), 2, make(6), make(5))


def test_too_many_channels_for_a_gradient():
    x, weight = make(1, 4001), make(4001)
    _, mean, rstd = torch_npu.npu_group_norm_swish(x, 1, weight, weight)
    with pytest.raises(
        RuntimeError, match="npu_group_norm_swish_grad: argument 'num_groups' must be such .* 4000"
    ):
        torch_npu.npu_group_norm_swish_grad(x, x, 1, weight, weight, mean, rstd, [True] * 3)


def test_the_gradient_takes_one_dtype():
    x, weight, bias = inputs((2, 6, 5), torch.float16)
    _, mean, rstd = torch_npu.npu_group_norm_swish(x, 2, weight, bias)
    call, mask = torch_npu.npu_group_norm_swish_grad, [True] * 3
    with pytest.raises(RuntimeError, match="'weight' must be of the dtype of 'input'"):
        call(x, x, 2, weight.float(), bias.float(), mean, rstd, mask)
    with pytest.raises(RuntimeError, match="'rstd' must be of the dtype of 'input'"):
        call(x, x, 2, weight, bias, mean, rstd.float(), mask)
