"""npu_clipped_swiglu: the clamped SwiGLU of GPT-OSS, for the first tokens of a grouped batch."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._sigmoid import swish


@npu_op(
    "npu_clipped_swiglu(Tensor x, *, Tensor? group_index=None, int dim=-1, float alpha=1.702,"
    " float limit=7.0, float bias=1.0, bool interleaved=True) -> Tensor"
)
def npu_clipped_swiglu(x, group_index, dim, alpha, limit, bias, interleaved):
    r"""Splits x into A and B, clamps both, and gates B by the Swish of A.

    $$ y = A' \cdot \mathrm{sigmoid}(\alpha A') \cdot (B' + bias), \quad
       A' = \min(A, limit), \quad B' = \mathrm{clamp}(B, -limit, limit) $$

    x is seen as (rows, width), the rows being the dimensions before `dim`. A and B are the even and
    the odd elements of a row (`interleaved`) or its halves.

    Args:
        x: at least 1 dimension, even along `dim`; float16, bfloat16 or float32.
        group_index: (groups,) in int64, the rows of each group; only the first `sum(group_index)`
            rows are computed. None for all rows.
        dim: the dimension to split, in [-x.dim(), x.dim() - 1].
        alpha: the factor within the sigmoid.
        limit: the bound of the clamps.
        bias: added to B.
        interleaved: how x is split.

    Returns:
        y, of the dtype of `x` and half its size along `dim`. Rows past the groups, which upstream
        leaves uninitialized, are zero.

    Differs from upstream: non-contiguous tensors, which the page excludes, are accepted.
    """
    dim = dim % x.dim()
    rows, width = math.prod(x.shape[:dim]), math.prod(x.shape[dim:])
    flat = wide(x).reshape(rows, width)
    a, b = (flat[:, ::2], flat[:, 1::2]) if interleaved else flat.chunk(2, 1)
    y = swish(a.clamp(max=limit), alpha) * (b.clamp(-limit, limit) + bias)
    if group_index is not None:
        taken = torch.arange(rows, device=x.device) < group_index.sum()
        y = torch.where(taken.unsqueeze(1), y, 0)
    y = y.to(x.dtype).contiguous()
    return y.view(*x.shape[:dim], x.shape[dim] // 2, *x.shape[dim + 1 :])


@npu_clipped_swiglu.check
def _(x, group_index, dim):
    must.dtype("x", x, torch.float16, torch.bfloat16, torch.float32)
    must.hold(x.dim() > 0, "x", "a tensor of at least 1 dimension", tuple(x.shape))
    rank, shape = x.dim(), tuple(x.shape)
    must.hold(-rank <= dim < rank, "dim", f"in [{-rank}, {rank - 1}]", dim)
    must.hold(shape[dim] % 2 == 0, "x", f"of even size in dimension {dim} (dim)", shape)
    must.dtype("group_index", group_index, torch.int64)
    must.ndim("group_index", group_index, 1)


npu_clipped_swiglu.samples = [
    Sample(lambda make: (make(6, 16, low=-9, high=9),)),
    Sample(
        lambda make: (make(6, 16, low=-9, high=9),),
        lambda make: {"group_index": make(2, dtype=torch.int64, low=1, high=3), "limit": 3.0},
    ),
    Sample(
        lambda make: (make(3, 4, 5, dtype=torch.bfloat16),),
        {"dim": 1, "interleaved": False, "alpha": 1.0, "bias": 0.0},
    ),
]
