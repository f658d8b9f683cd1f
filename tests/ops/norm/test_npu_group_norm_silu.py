"""npu_group_norm_silu against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.norm._groups import group_norm
from tests.ops.support import assert_accurate, make

SHAPES = [((2, 6, 5, 3), 3), ((3, 4), 2), ((2, 8, 7), 8), ((1, 6, 3), 1), ((2, 2, 1, 1, 3), 2)]


def silu(z):
    return z / (1 + torch.exp(-z))


def cpu(tensor, dtype=None):
    return None if tensor is None else tensor.cpu().to(dtype or tensor.dtype)


def run(x, weight, bias, groups, eps):
    got = torch_npu.npu_group_norm_silu(x, weight, bias, groups, eps)
    wide = [cpu(t, torch.float64) for t in (x, weight, bias)]
    y, mean, rstd = group_norm(wide[0], groups, wide[1], wide[2], eps)
    z, m, r = group_norm(cpu(x), groups, cpu(weight, x.dtype), cpu(bias, x.dtype), eps)
    for have, want, plain in zip(got, (silu(y), mean, rstd), (silu(z), m, r), strict=True):
        assert have.dtype == x.dtype
        assert_accurate(have, want, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,groups", SHAPES)
def test_forward(shape, groups, dtype):
    x = make(*shape, dtype=dtype, low=-1, high=3)
    run(x, make(shape[1], dtype=dtype), make(shape[1], dtype=dtype, seed=3), groups, 1e-4)


@pytest.mark.parametrize("with_weight,with_bias", [(False, False), (True, False), (False, True)])
def test_optional_affine(with_weight, with_bias):
    weight = make(6) if with_weight else None
    run(make(2, 6, 4), weight, make(6, seed=4) if with_bias else None, 2, 1e-5)


@pytest.mark.family("A2")
def test_wider_weight():
    run(make(2, 6, 4, dtype=torch.float16), make(6), make(6, seed=4), 3, 1e-5)


def test_statistics_are_promoted_on_ascend950():
    x, weight = make(2, 6, 4, dtype=torch.float16), make(6)
    with on("A5"):
        y, mean, rstd = torch_npu.npu_group_norm_silu(x, weight, weight, 3)
        plain = torch_npu.npu_group_norm_silu(x, None, None, 3)
    assert (y.dtype, mean.dtype, rstd.dtype) == (torch.float16, torch.float32, torch.float32)
    assert {t.dtype for t in plain} == {torch.float16}


def test_non_contiguous():
    run(make(5, 6, 4).transpose(0, 2), make(6), make(6, seed=4), 3, 1e-5)


def test_default_eps():
    x = make(2, 4, 3) * 1e-3
    got = torch_npu.npu_group_norm_silu(x, None, None, 2)
    want = torch_npu.npu_group_norm_silu(x, None, None, 2, 1e-5)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_group_must_divide():
    with pytest.raises(
        RuntimeError, match="npu_group_norm_silu: argument 'group' must be a divisor of the 6 .* 4"
    ):
        torch_npu.npu_group_norm_silu(make(2, 6), None, None, 4)


@pytest.mark.parametrize(
    "group,eps,name", [(0, 1e-5, "group"), (2, 0.0, "eps"), (-1, 1e-5, "group")]
)
def test_positive_arguments(group, eps, name):
    with pytest.raises(RuntimeError, match=f"argument '{name}' must be greater than 0"):
        torch_npu.npu_group_norm_silu(make(2, 6), None, None, group, eps)


@pytest.mark.family("A2")
def test_empty_dimension():
    words = "argument 'input' must be without a dimension of size 0 among the first two"
    with pytest.raises(RuntimeError, match=words):
        torch_npu.npu_group_norm_silu(make(0, 6), None, None, 2)
    with on("A5"):
        y, mean, _ = torch_npu.npu_group_norm_silu(make(0, 6), None, None, 2)
        assert y.shape == (0, 6) and mean.shape == (0, 2)
        with pytest.raises(RuntimeError, match="of size 0 after the first"):
            torch_npu.npu_group_norm_silu(make(2, 6, 0), None, None, 2)


@pytest.mark.family("A2")
def test_channels_without_elements():
    y, mean, rstd = torch_npu.npu_group_norm_silu(make(3, 6, 0), None, None, 2)
    assert y.shape == (3, 6, 0)
    assert mean.tolist() == [[0, 0]] * 3 and rstd.shape == (3, 2) and rstd.isnan().all()


def test_narrower_weight():
    with pytest.raises(RuntimeError, match="argument 'weight' must be of dtype .*float16"):
        torch_npu.npu_group_norm_silu(make(2, 6), make(6, dtype=torch.float16), None, 2)


def test_weight_and_bias_differ():
    x = make(2, 6, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="argument 'bias' must be of the dtype of 'weight'"):
        torch_npu.npu_group_norm_silu(x, make(6), make(6, dtype=torch.float16), 2)


def test_one_dimension():
    with pytest.raises(
        RuntimeError, match="argument 'input' must be a tensor of 2 to 8 dimensions"
    ):
        torch_npu.npu_group_norm_silu(make(6), None, None, 2)


def test_no_bfloat16_on_inference_series():
    with (
        on("310P"),
        pytest.raises(RuntimeError, match="'input' must be of dtype .*bfloat16"),
    ):
        torch_npu.npu_group_norm_silu(make(2, 6, dtype=torch.bfloat16), None, None, 2)
