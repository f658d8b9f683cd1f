"""npu_fused_attention_score and its fwd, backward and grad forms against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

HALF = torch.float16


def reference(q, k, v, mask, scale, kept=1.0):
    """(B * S, N * D) and the softmax, in the dtype given."""
    softmax = (q @ k.mT * scale + mask).softmax(-1)
    out = (softmax * kept) @ v
    batch, heads, rows, size = q.shape
    return out.transpose(1, 2).reshape(batch * rows, heads * size), softmax


def inputs(batch=2, heads=3, rows=5, size=8, dtype=HALF, **options):
    q, k, v = (make(batch, heads, rows, size, dtype=dtype, seed=s, **options) for s in range(3))
    return q, k, v, make(batch, heads, rows, rows, dtype=dtype, seed=9)


def host(*tensors, dtype=torch.float64):
    return [t.cpu().to(dtype) for t in tensors]


@pytest.mark.parametrize("mask_shape", [(2, 3, 5, 5), (2, 1, 1, 5)])
def test_forward(mask_shape):
    q, k, v, _ = inputs()
    mask = make(*mask_shape, dtype=HALF)
    out = torch_npu.npu_fused_attention_score(q, k, v, mask, 0.3, 1.0)
    want, _ = reference(*host(q, k, v, mask), 0.3)
    plain, _ = reference(*host(q, k, v, mask, dtype=HALF), 0.3)
    assert out.dtype == HALF and out.shape == (10, 24)
    assert_accurate(out, want, plain)


def test_dropout():
    q, k, v, mask = inputs(rows=16)
    out, softmax, kept = torch_npu.npu_fused_attention_score_fwd(q, k, v, mask, 0.3, 0.75)
    assert kept.dtype == torch.uint8 and kept.shape == (2 * 3 * 16 * 16,)
    share = kept.float().mean().item()
    assert 0.68 < share < 0.82 and kept.max() == 1
    factors = kept.cpu().double().view(2, 3, 16, 16) / 0.75
    want, weights = reference(*host(q, k, v, mask), 0.3, factors)
    plain, plain_weights = reference(*host(q, k, v, mask, dtype=HALF), 0.3, factors.half())
    assert_accurate(out, want, plain)
    assert_accurate(softmax, weights, plain_weights)


def test_transposed_inputs():
    q, k, v, mask = inputs()
    want = torch_npu.npu_fused_attention_score(q, k, v, mask, 0.3, 1.0)
    flags = {
        "query_transpose": True,
        "key_transpose": True,
        "bmm_score_transpose_b": True,
        "value_transpose": True,
    }
    turned = [t.mT.contiguous() for t in (q, k, v)]
    assert torch.equal(torch_npu.npu_fused_attention_score(*turned, mask, 0.3, 1.0, **flags), want)


@pytest.mark.parametrize("name", ["npu_fused_attention_score", "npu_fused_attention_score_fwd"])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients(name, turned):
    q, k, v, mask = inputs(1, 2, 3, 4, dtype=torch.float64)
    leaves = [(t.mT.contiguous() if turned else t).requires_grad_() for t in (q, k, v)]
    flags = {}
    if turned:
        flags = dict.fromkeys(
            ("query_transpose", "key_transpose", "bmm_score_transpose_b", "value_transpose"), True
        )

    def run(*tensors):
        found = getattr(torch_npu, name)(*tensors, mask, 0.3, 1.0, **flags)
        return found if name == "npu_fused_attention_score" else found[0]

    gradcheck(run, *leaves, fast_mode=True)


def test_gradient_forms_with_dropout():
    q, k, v, mask = inputs()
    _, softmax, kept = torch_npu.npu_fused_attention_score_fwd(q, k, v, mask, 0.3, 0.5)
    grad = make(10, 24, dtype=HALF)
    found = torch_npu.npu_fused_attention_score_backward(grad, softmax, q, k, v, kept, 0.3, 0.5)
    rows = torch_npu.npu_fused_attention_score_grad(grad, softmax, q, k, v, kept, 0.3, 0.5)

    def gradients(dtype):
        leaves = [t.requires_grad_() for t in host(q, k, v, dtype=dtype)]
        out, _ = reference(
            *leaves, mask.cpu().to(dtype), 0.3, kept.cpu().to(dtype).view(softmax.shape) * 2
        )
        return torch.autograd.grad(out, leaves, grad.cpu().to(dtype))

    for have, flat, want, plain in zip(
        found, rows, gradients(torch.float64), gradients(HALF), strict=True
    ):
        assert have.shape == want.shape and flat.shape == (10, 24)
        assert_accurate(have, want, plain, slack=1e-3)
        assert torch.equal(flat, have.transpose(1, 2).reshape(10, 24))


def test_refuses_bad_arguments():
    q, k, v, mask = inputs()
    name = "npu_fused_attention_score: argument "
    run = torch_npu.npu_fused_attention_score
    with pytest.raises(RuntimeError, match=name + "'query_layer' must be of dtype torch.float16"):
        run(q.float(), k, v, mask, 1.0, 1.0)
    with pytest.raises(RuntimeError, match=r"'key_layer' must be of shape \(2, 3, 5, 8\)"):
        run(q, k[:, :, :4], v, mask, 1.0, 1.0)
    with pytest.raises(RuntimeError, match="'attention_mask' must be broadcastable to"):
        run(q, k, v, mask[..., :3], 1.0, 1.0)
    with pytest.raises(
        RuntimeError, match="'keep_prob' must be above 0 and up to 1, but received 0"
    ):
        run(q, k, v, mask, 1.0, 0.0)
    with pytest.raises(NotImplementedError, match="'dx_transpose' must be False"):
        run(q, k, v, mask, 1.0, 1.0, dx_transpose=True)
    with pytest.raises(RuntimeError, match="'value_transpose' must be bmm_score_transpose_b"):
        run(q, k, v, mask, 1.0, 1.0, value_transpose=True)


def test_backward_refuses_a_mask_of_another_size():
    q, k, v, _ = inputs()
    grad, softmax = make(10, 24, dtype=HALF), make(2, 3, 5, 5, dtype=HALF)
    with pytest.raises(RuntimeError, match=r"'mask' must be of shape \(150\)"):
        torch_npu.npu_fused_attention_score_backward(
            grad, softmax, q, k, v, make(9, dtype=torch.uint8, low=0, high=2), 1.0, 1.0
        )
