"""npu_mhc_sinkhorn and its backward against the iteration in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import gradcheck, make, max_error
from torch_npu.ops.mhc import _sinkhorn_layout as layout


def reference(x, eps, iters):
    """All steps in fp64: the softmax without epsilon first."""
    y = torch.exp(x - x.amax(-1, keepdim=True))
    y = y / y.sum(-1, keepdim=True)
    norms, sums = [y], [None]
    y = y + eps
    for k in range(1, 2 * iters):
        total = y.sum(-2 if k % 2 else -1, keepdim=True) + eps
        y = y / total
        norms.append(y)
        sums.append(total)
    return norms, sums


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
@pytest.mark.parametrize("iters", [1, 2, 20])
@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 5, 6, 6), (1, 8, 8)])
def test_forward(shape, iters, eps):
    x = make(*shape, low=-3, high=3)
    y, norm, total = torch_npu.npu_mhc_sinkhorn(x, eps=eps, num_iters=iters)
    assert y.dtype == torch.float32 and norm.numel() == total.numel() == 0
    assert max_error(y, reference(x.cpu().double(), eps, iters)[0][-1]) < 2e-6
    if eps < 1e-5 and iters == 20:
        assert max_error(y.sum(-2), torch.ones(shape[:-1])) < 1e-5


def test_defaults():
    x = make(3, 4, 4)
    want = torch_npu.npu_mhc_sinkhorn(x, eps=1e-6, num_iters=20, out_flag=0)[0]
    assert torch.equal(torch_npu.npu_mhc_sinkhorn(x)[0].cpu(), want.cpu())


@pytest.mark.parametrize("tokens,n", [(5, 4), (64, 4), (130, 6), (9000, 8)])
def test_steps_in_the_order_of_the_backward(tokens, n):
    """Tile after tile; within one, matrices as (step, n, tokens, 8) and sums as rows (8, tokens), columns (tokens, 8)."""
    iters = 2
    x = make(tokens, n, n, low=-2, high=2)
    _, norm, total = torch_npu.npu_mhc_sinkhorn(x, num_iters=iters, out_flag=1)
    assert norm.shape == (2 * iters * tokens * n * 8,) and total.shape == (2 * iters * tokens * 8,)
    norms, sums = reference(x.cpu().double(), 1e-6, iters)
    norm, total = norm.cpu(), total.cpu()
    at, spans = 0, list(layout.tiles(tokens, n))
    assert sum(t for _, t in spans) == tokens
    for first, t in (spans[0], spans[len(spans) // 2], spans[-1]):
        at = 2 * iters * first * n * 8
        part = norm[at : at + 2 * iters * n * t * 8].view(2 * iters, n, t, 8)
        for k in range(2 * iters):
            assert max_error(part[k, :, 0, :n], norms[k][first]) < 1e-6
            assert max_error(part[k, :, t - 1, :n], norms[k][first + t - 1]) < 1e-6
        assert not part[..., n:].any()
        at = 2 * iters * first * 8
        part = total[at : at + 2 * iters * t * 8].view(iters, 2, 8 * t)
        assert (part[0, 0] == 1).all()
        row, column = part[1, 0].view(8, t), part[1, 1].view(t, 8)
        assert max_error(row[:n, t - 1], sums[2][first + t - 1, :, 0]) < 1e-6
        assert (row[n:] == 1).all() and not column[:, n:].any()
        assert max_error(column[t - 1, :n], sums[3][first + t - 1, 0]) < 1e-6


def test_tiles_of_a_core():
    """Up to 64 tokens each core has one; many tokens are split over cores, then into what a buffer holds."""
    assert list(layout.tiles(3, 4)) == [(0, 1), (1, 1), (2, 1)]
    assert (
        list(layout.tiles(130, 4))[:2] == [(0, 3), (3, 3)] and len(list(layout.tiles(130, 4))) == 44
    )
    sizes = [t for _, t in layout.tiles(64 * 1000, 4)]
    assert max(sizes) < 1000 and max(sizes) % 8 == 0 and sum(sizes) == 64000


def test_backward_operator():
    x = make(7, 6, 6, low=-2, high=2)
    dy = make(7, 6, 6, seed=9)
    _, norm, total = torch_npu.npu_mhc_sinkhorn(x, num_iters=5, out_flag=1)
    got = torch_npu.npu_mhc_sinkhorn_backward(dy, norm, total)
    leaf = x.cpu().double().requires_grad_()
    reference(leaf, 1e-6, 5)[0][-1].backward(dy.cpu().double())
    assert max_error(got, leaf.grad) < 1e-6


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 2, 6, 6)])
def test_gradients(shape):
    x = make(*shape, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda x: torch_npu.npu_mhc_sinkhorn(x, num_iters=3, out_flag=1)[0], x)


def test_gradients_need_out_flag():
    y, _, _ = torch_npu.npu_mhc_sinkhorn(make(3, 4, 4, requires_grad=True))
    with pytest.raises(RuntimeError, match="'sum' must be the forward's third result with out_fl"):
        y.sum().backward()


@pytest.mark.parametrize(
    "shape,options,message",
    [
        ((3, 5, 5), {}, "'the last size of x' must be 4, 6 or 8, but received 5"),
        ((3, 6, 4), {}, r"'x' must be of square matrices.*\(3, 6, 4\)"),
        ((4, 4), {}, "'x' must be a tensor of 3 to 4 dimensions"),
        ((3, 4, 4), {"num_iters": 0}, r"'num_iters' must be in \[1, 100\], but received 0"),
        ((3, 4, 4), {"out_flag": 2}, "'out_flag' must be 0 or 1, but received 2"),
    ],
)
def test_refusals(shape, options, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_mhc_sinkhorn(make(*shape), **options)


def test_dtype():
    with pytest.raises(RuntimeError, match="'x' must be of dtype torch.float32"):
        torch_npu.npu_mhc_sinkhorn(make(3, 4, 4).half())
