"""npu_mhc_sinkhorn and its backward: a matrix made doubly stochastic by alternating normalization."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.mhc import _sinkhorn_layout as layout

SIZES = (4, 6, 8)


def _steps(x, eps, num_iters):
    """The normalized matrices after each step (the softmax first) and the sums that they were divided by."""
    probability = torch.softmax(x, -1)
    norms, sums = [probability], [torch.ones_like(probability[..., :1])]
    current = probability + eps
    for step in range(1, 2 * num_iters):
        dim = -2 if step % 2 else -1
        total = current.sum(dim, keepdim=True) + eps
        current = current / total
        norms.append(current)
        sums.append(total)
    return norms, sums


@npu_op(
    "npu_mhc_sinkhorn(Tensor x, *, float eps=1e-6, SymInt num_iters=20, int out_flag=0)"
    " -> (Tensor, Tensor, Tensor)",
    output_differentiability=(True, False, False),
)
def npu_mhc_sinkhorn(x, eps, num_iters, out_flag):
    r"""Sinkhorn's iteration: softmax of the rows, then columns and rows normalized by turns.

    $$ y_0 = \mathrm{softmax}(x, -1) + \varepsilon, \quad
       y_k = \frac{y_{k-1}}{\sum y_{k-1} + \varepsilon} $$

    where the sum runs over the rows of a column for odd k and over the columns of a row for even k;
    the result is y_{2 num_iters - 1}.

    Args:
        x: the matrices, (B, S, n, n) or (T, n, n) float32, with n 4, 6 or 8.
        eps: epsilon.
        num_iters: 1 to 100.
        out_flag: 1 returns what the gradient needs, too.

    Returns:
        y with the shape of x; with `out_flag` the matrices after each step (2 num_iters * T * n * 8
        numbers) and the sums (2 num_iters * T * 8 numbers) in the order in which the backward reads
        them, otherwise two empty tensors.

    Differs from upstream: upstream has it on Ascend950 only, here every chip computes it. The page
    gives the second and third result another shape than upstream's code, which is followed here.
    """
    norms, sums = _steps(x, eps, num_iters)
    if not out_flag:
        return norms[-1], x.new_empty(0), x.new_empty(0)
    flat = [t.reshape(-1, *t.shape[-2:]) for t in (*norms, *sums)]
    norms, sums = flat[: len(norms)], flat[len(norms) :]
    return norms[-1].reshape(x.shape), layout.pack_norms(norms), layout.pack_sums(sums)


@npu_mhc_sinkhorn.check
def _(x, num_iters, out_flag):
    must.dtype("x", x, torch.float32)
    must.ndim("x", x, 3, 4)
    shape = tuple(x.shape)
    must.choice("the last size of x", shape[-1], SIZES)
    must.hold(shape[-1] == shape[-2], "x", "of square matrices", shape)
    must.hold(x.numel() > 0, "x", "not empty", shape)
    must.hold(1 <= num_iters <= 100, "num_iters", "in [1, 100]", num_iters)
    must.choice("out_flag", out_flag, (0, 1))


@npu_mhc_sinkhorn.meta
def _(x, num_iters, out_flag):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not out_flag:
        return y, x.new_empty(0), x.new_empty(0)
    n, tokens = x.shape[-1], x.numel() // (x.shape[-1] * x.shape[-1])
    steps = 2 * num_iters * tokens * layout.ALIGNED
    return y, x.new_empty(steps * n), x.new_empty(steps)


@npu_mhc_sinkhorn.backward
def _(grad, *, result1, result2):
    return {"x": npu_mhc_sinkhorn_backward(grad, result1, result2)}


npu_mhc_sinkhorn.samples = [
    Sample(lambda make: (make(3, 4, 4),), {"num_iters": 3, "out_flag": 1}),
    Sample(lambda make: (make(2, 3, 6, 6),), {"eps": 1e-4}),
]


@npu_op("npu_mhc_sinkhorn_backward(Tensor grad_y, Tensor norm, Tensor sum) -> Tensor")
def npu_mhc_sinkhorn_backward(grad_y, norm, sum):
    r"""Gradient of `npu_mhc_sinkhorn`, from what it returns with `out_flag=1`.

    $$ dy_{k-1} = \frac{dy_k - \sum dy_k\, y_k}{s_k}, \quad
       dx = p\,(dy_0 - \sum_{-1} dy_0\, p) $$

    with s the sums and p the softmax.

    Args:
        grad_y: dy, (B, S, n, n) or (T, n, n) float32.
        norm: the forward's second result.
        sum: the forward's third result.

    Returns:
        dx, with the shape of `grad_y`.
    """
    n = grad_y.shape[-1]
    dy = grad_y.reshape(-1, n, n)
    norms, sums = layout.unpack_norms(norm, len(dy), n), layout.unpack_sums(sum, len(dy), n)
    for step in range(len(norms) - 1, 0, -1):
        dim = -2 if step % 2 else -1
        dy = (dy - (dy * norms[step]).sum(dim, keepdim=True)) / sums[step]
    dx = norms[0] * (dy - (dy * norms[0]).sum(-1, keepdim=True))
    return dx.reshape(grad_y.shape)


@npu_mhc_sinkhorn_backward.check
def _(grad_y, norm, sum):
    must.dtype("grad_y", grad_y, torch.float32)
    must.ndim("grad_y", grad_y, 3, 4)
    shape = tuple(grad_y.shape)
    n = shape[-1]
    must.choice("the last size of grad_y", n, SIZES)
    must.hold(n == shape[-2], "grad_y", "of square matrices", shape)
    must.dtype("norm", norm, torch.float32)
    must.dtype("sum", sum, torch.float32)
    must.hold(grad_y.numel() > 0, "grad_y", "not empty", shape)
    once = 2 * layout.ALIGNED * (grad_y.numel() // (n * n))
    received = sum.numel()
    must.hold(
        received > 0 and received % once == 0,
        "sum",
        f"the forward's third result with out_flag=1, of a multiple of {once} numbers",
        received,
    )
    expected = f"the forward's second result with out_flag=1, of {received * n} numbers"
    must.hold(norm.numel() == received * n, "norm", expected, norm.numel())


@npu_mhc_sinkhorn_backward.meta
def _(grad_y):
    return torch.empty_like(grad_y, memory_format=torch.contiguous_format)


npu_mhc_sinkhorn_backward.samples = [
    Sample(
        lambda make: (
            make(3, 4, 4),
            make(2 * 2 * 3 * 4 * 8, low=0.1),
            make(2 * 2 * 3 * 8, low=0.5),
        )
    ),
]
