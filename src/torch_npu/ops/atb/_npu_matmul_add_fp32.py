"""_npu_matmul_add_fp32: the product of a weight's gradient, added up in float32 in place."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules


@npu_op(
    "atb::_npu_matmul_add_fp32(Tensor x, Tensor weight, Tensor(a!) C) -> ()",
    ge="Linear",
    core="AI_CORE",
    product=True,
)
def _npu_matmul_add_fp32(x, weight, C):
    r"""Adds the product of a transposed matrix and a matrix to `C`, in place.

    $$ C \gets C + x^T w $$

    Args:
        x: (k, m) or (b, k, m), float16 or bfloat16.
        weight: w, (k, n) or (b, k, n), the dtype of `x`.
        C: (m, n) or (b, m, n), float32, written.

    Returns:
        Nothing.
    """
    if x.dim() == 3:
        C.baddbmm_(wide(x).mT, wide(weight))
    else:
        C.addmm_(wide(x).t(), wide(weight))


@_npu_matmul_add_fp32.check
def _(x, weight, C):
    rules.family("x", "A2", "A3")
    must.dtype("x", x, *rules.FLOATS)
    must.same_dtype("weight", weight, "x", x)
    must.dtype("C", C, torch.float32)
    must.ndim("x", x, 2, 3)
    batch = tuple(x.shape[:-2])
    must.shape("weight", weight, (*batch, x.shape[-2], None))
    must.shape("C", C, (*batch, x.shape[-1], weight.shape[-1]))
    rules.written("C", C)


@_npu_matmul_add_fp32.meta
def _():
    return None


_npu_matmul_add_fp32.samples = [
    Sample(
        lambda make: (
            make(6, 4, dtype=torch.float16),
            make(6, 5, dtype=torch.float16),
            make(4, 5),
        )
    ),
    Sample(
        lambda make: (
            make(3, 8, dtype=torch.bfloat16),
            make(3, 2, dtype=torch.bfloat16),
            make(8, 2),
        )
    ),
]
