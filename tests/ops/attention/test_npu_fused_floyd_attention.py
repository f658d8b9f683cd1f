"""npu_fused_floyd_attention and its gradient against einsum in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def inputs(dtype, grad=False, size=32):
    shapes = [(1, 2, 16, 128, size)] * 3 + [(1, 2, 128, 128, size)] * 2
    return [make(*s, dtype=dtype, seed=i, requires_grad=grad) for i, s in enumerate(shapes)]


def reference(query, key_ij, value_ij, key_jk, value_jk, mask, scale):
    scores = torch.einsum("bhikd,bhijd->bhikj", query, key_ij)
    scores = (scores + torch.einsum("bhikd,bhjkd->bhikj", query, key_jk)) * scale
    if mask is not None:
        scores = scores.masked_fill(mask.bool(), -torch.inf)
    weights = scores.softmax(-1)
    out = torch.einsum("bhikj,bhijd->bhikd", weights, value_ij)
    out = out + torch.einsum("bhikj,bhjkd->bhikd", weights, value_jk)
    top = scores.amax(-1)
    return top, (scores - top.unsqueeze(-1)).exp().sum(-1), out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [None, torch.bool, torch.uint8])
def test_attention(dtype, kind):
    given = inputs(dtype)
    mask = None
    if kind is not None:
        mask = make(1, 1, 16, 1, 128, dtype=torch.bool)
        mask[..., 0] = False
        mask = mask.to(kind)
    found = torch_npu.npu_fused_floyd_attention(*given, atten_mask=mask, scale_value=0.2)
    right = reference(*(t.cpu().double() for t in given), None if mask is None else mask.cpu(), 0.2)
    for mine, correct in zip(found[:2], right[:2], strict=True):
        assert mine.shape == (1, 2, 16, 128, 8) and (mine == mine[..., :1]).all()
        torch.testing.assert_close(mine[..., 0].cpu().double(), correct, rtol=1e-4, atol=1e-4)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 3e-3
    torch.testing.assert_close(found[2].cpu().double(), right[2], rtol=tolerance, atol=tolerance)


def test_gradients():
    given = inputs(torch.float16, grad=True)
    mask = make(1, 1, 16, 1, 128, dtype=torch.bool)
    mask[..., 0] = False
    top, _, out = torch_npu.npu_fused_floyd_attention(*given, atten_mask=mask, scale_value=0.2)
    assert not top.requires_grad
    gradient = make(*out.shape, dtype=torch.float16, seed=9)
    out.backward(gradient)
    plain = [t.detach().cpu().double().requires_grad_() for t in given]
    reference(*plain, mask.cpu(), 0.2)[2].backward(gradient.cpu().double())
    for mine, right in zip(given, plain, strict=True):
        scale = right.grad.abs().max()
        assert (mine.grad.cpu().double() - right.grad).abs().max() <= 5e-3 * scale


def test_hidden_rows_are_zero():
    mask = torch.ones(1, 1, 16, 1, 128, dtype=torch.bool).npu()
    found = torch_npu.npu_fused_floyd_attention(*inputs(torch.float16), atten_mask=mask)
    assert not found[2].any() and not found[1].any()


@pytest.mark.parametrize(
    "place,shape,message",
    [
        (0, (1, 2, 15, 128, 32), r"'key_ij' must be of shape \(1, 2, 15, 128, 32\)"),
        (1, (1, 2, 16, 64, 32), r"'value_ij' must be of shape \(1, 2, 16, 64, 32\)"),
        (3, (1, 2, 128, 64, 32), r"'key_jk' must be of shape \(1, 2, 128, 128, 32\)"),
        (0, (1, 2, 16, 128), "'query_ik' must be a tensor of 5 dimensions"),
    ],
)
def test_shapes(place, shape, message):
    given = inputs(torch.float16)
    given[place] = make(*shape, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=f"npu_fused_floyd_attention: argument {message}"):
        torch_npu.npu_fused_floyd_attention(*given)


def test_head_sizes_and_mask():
    with pytest.raises(RuntimeError, match="'query_ik' must be of head size 32, 64 or 128"):
        torch_npu.npu_fused_floyd_attention(*inputs(torch.float16, size=16))
    with pytest.raises(RuntimeError, match=r"'atten_mask' must be of shape \(1, 1, 16, 1, 128\)"):
        torch_npu.npu_fused_floyd_attention(
            *inputs(torch.float16), atten_mask=torch.zeros(16, 128).bool().npu()
        )


def test_chips():
    with (
        on("A5"),
        pytest.raises(NotImplementedError, match="'query_ik' must be on a chip of series A2 or A3"),
    ):
        torch_npu.npu_fused_floyd_attention(*inputs(torch.float16))
