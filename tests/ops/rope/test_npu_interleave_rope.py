"""npu_interleave_rope against rotations of single pairs in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.rope._loops import rotate
from tests.ops.support import assert_accurate, make


def inputs(x_shape, r_shape, dtype=torch.float16):
    return (
        make(*x_shape, dtype=dtype),
        make(*r_shape, dtype=dtype, seed=1),
        make(*r_shape, dtype=dtype, seed=2),
    )


def check(*tensors):
    got = torch_npu.npu_interleave_rope(*tensors)
    assert got.dtype == tensors[0].dtype and got.shape == tensors[0].shape
    want = rotate(*(t.cpu().double() for t in tensors), "interleave-half")
    assert_accurate(got, want, rotate(*(t.cpu() for t in tensors), "interleave-half"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "x_shape,r_shape",
    [
        ((3, 4, 1, 64), (3, 1, 1, 64)),
        ((2, 3, 5, 64), (2, 1, 5, 64)),
        ((2, 3, 5, 64), (2, 1, 1, 64)),
        ((1, 1, 1, 64), (1, 1, 1, 64)),
        ((0, 2, 1, 64), (0, 1, 1, 64)),
    ],
)
def test_forward(x_shape, r_shape, dtype):
    check(*inputs(x_shape, r_shape, dtype))


def test_order_of_the_result():
    x = torch.arange(64, dtype=torch.float16).view(1, 1, 1, 64)
    cos = torch.ones(1, 1, 1, 64, dtype=torch.float16)
    x, cos = x.to(make(1).device), cos.to(make(1).device)
    y = torch_npu.npu_interleave_rope(x, cos, torch.zeros_like(cos)).cpu().flatten()
    assert y.tolist() == [*range(0, 64, 2), *range(1, 64, 2)]
    y = torch_npu.npu_interleave_rope(x, torch.zeros_like(cos), cos).cpu().flatten()
    assert y.tolist() == [*(-i for i in range(1, 64, 2)), *range(0, 64, 2)]


def test_non_contiguous():
    x, cos, sin = inputs((2, 5, 3, 128), (2, 1, 5, 64))
    check(x.transpose(1, 2)[..., 64:], cos, sin)


def test_other_shapes_on_ascend950():
    with on("A5"):
        check(*inputs((1, 4, 2, 16), (1, 4, 1, 16)))
        with pytest.raises(RuntimeError, match="argument 'x' must be even in its last dimension"):
            torch_npu.npu_interleave_rope(*inputs((1, 4, 2, 7), (1, 1, 2, 7)))
        with pytest.raises(RuntimeError, match="argument 'cos' must be of a shape that broadcasts"):
            torch_npu.npu_interleave_rope(*inputs((1, 4, 2, 16), (1, 3, 2, 16)))


def test_no_derivative():
    x, cos, sin = inputs((3, 4, 1, 64), (3, 1, 1, 64))
    y = torch_npu.npu_interleave_rope(x.requires_grad_(), cos, sin)
    with pytest.raises(RuntimeError, match="npu_interleave_rope' is not implemented"):
        y.float().sum().backward()


@pytest.mark.family("A2")
def test_head_size():
    with pytest.raises(
        RuntimeError,
        match=r"npu_interleave_rope: argument 'x' must be of shape \(\*, \*, \*, 64\).*32\)",
    ):
        torch_npu.npu_interleave_rope(*inputs((3, 4, 1, 32), (3, 1, 1, 32)))


@pytest.mark.family("A2")
def test_several_heads_of_cos():
    with pytest.raises(RuntimeError, match=r"argument 'cos' must be of shape \(3, 1, 2, 64\)"):
        torch_npu.npu_interleave_rope(*inputs((3, 4, 2, 64), (3, 4, 2, 64)))


def test_bad_dtypes():
    x, cos, sin = inputs((3, 4, 1, 64), (3, 1, 1, 64))
    with pytest.raises(RuntimeError, match="argument 'x' must be of dtype .*float32"):
        torch_npu.npu_interleave_rope(x.float(), cos.float(), sin.float())
    with pytest.raises(RuntimeError, match="argument 'sin' must be of the dtype of 'x'"):
        torch_npu.npu_interleave_rope(x, cos, sin.bfloat16())


def test_rank():
    with pytest.raises(RuntimeError, match="argument 'x' must be a tensor of 4 dimensions"):
        torch_npu.npu_interleave_rope(*inputs((4, 1, 64), (1, 1, 64)))
