"""npu_mhc_post and its backward against sums in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make


def inputs(tokens, n, width, dtype, res=True):
    return (
        make(*tokens, n, width, dtype=dtype),
        make(*tokens, n, n, seed=2) if res else None,
        make(*tokens, width, dtype=dtype, seed=3),
        make(*tokens, n, seed=4),
    )


def formula(x, h_res, h_out, h_post):
    kept = x if h_res is None else torch.einsum("...ij,...id->...jd", h_res, x)
    return kept + torch.einsum("...j,...d->...jd", h_post, h_out)


def double(tensors):
    return [None if t is None else t.detach().cpu().double() for t in tensors]


@pytest.mark.parametrize("res", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [(5,), (2, 3), (1, 1), (0,)])
def test_forward(tokens, dtype, res):
    given = inputs(tokens, 4, 16, dtype, res)
    y = torch_npu.npu_mhc_post(*given)
    want = formula(*double(given))
    assert y.dtype == dtype and y.shape == given[0].shape
    assert_accurate(y, want, want.to(dtype))


def test_non_contiguous():
    x, h_res, h_out, h_post = inputs((6,), 4, 16, torch.float16)
    x = x.transpose(0, 2).contiguous().transpose(0, 2)
    h_res = h_res.transpose(1, 2)
    given = (x, h_res, h_out, h_post)
    want = formula(*double(given))
    assert_accurate(torch_npu.npu_mhc_post(*given), want, want.half())


@pytest.mark.parametrize("res", [True, False])
def test_backward_operator(res):
    given = inputs((2, 3), 4, 16, torch.bfloat16, res)
    dy = make(2, 3, 4, 16, dtype=torch.bfloat16, seed=9)
    got = torch_npu.npu_mhc_post_backward(dy, *given)
    leaves = [None if t is None else t.requires_grad_() for t in double(given)]
    formula(*leaves).backward(dy.cpu().double())
    for mine, leaf, like in zip(got, leaves, given, strict=True):
        if leaf is None:
            assert mine.shape == (2, 3, 4, 4) and not mine.cpu().any()
        else:
            assert mine.dtype == like.dtype
            assert_accurate(mine, leaf.grad, leaf.grad.to(like.dtype), slack=2e-6)


@pytest.mark.parametrize("res", [True, False])
def test_gradients(res):
    given = [
        t if t is None else t.to("npu", torch.float64).requires_grad_()
        for t in inputs((3,), 4, 2, torch.half, res)
    ]
    if res:
        gradcheck(torch_npu.npu_mhc_post, *given)
    else:
        x, _, h_out, h_post = given
        gradcheck(lambda x, o, p: torch_npu.npu_mhc_post(x, None, o, p), x, h_out, h_post)


@pytest.mark.parametrize(
    "index,value,message",
    [
        (0, (3, 4, 16, torch.float32), "'x' must be of dtype .*float32"),
        (1, (3, 4, 5, torch.float32), r"'h_res' must be of shape \(3, 4, 4\).*\(3, 4, 5\)"),
        (1, (3, 4, 4, torch.float16), "'h_res' must be of dtype torch.float32"),
        (2, (3, 17, torch.float16), r"'h_out' must be of shape \(3, 16\).*\(3, 17\)"),
        (3, (3, 5, torch.float32), r"'h_post' must be of shape \(3, 4\).*\(3, 5\)"),
    ],
)
def test_refusals(index, value, message):
    given = list(inputs((3,), 4, 16, torch.float16))
    given[index] = make(*value[:-1], dtype=value[-1])
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_mhc_post(*given)
