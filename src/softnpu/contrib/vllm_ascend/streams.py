"""Hyper-connections of `_C_ascend`: the residual streams of DeepSeek-V4 before and after a layer."""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops.mhc.npu_mhc_post import npu_mhc_post
from torch_npu.ops.mhc.npu_mhc_pre import npu_mhc_pre
from torch_npu.ops.mhc.npu_mhc_sinkhorn import npu_mhc_sinkhorn

__all__ = ["npu_hc_post", "npu_hc_pre_v2"]

#: how many streams there are
STREAMS = 4


@ascend_op(
    "npu_hc_pre_v2(Tensor x, Tensor hc_fn, Tensor hc_scale, Tensor hc_base, int hc_mult, "
    "int hc_sinkhorn_iters, float norm_eps, float hc_eps) -> "
    "(Tensor out0, Tensor out1, Tensor out2)",
    product=True,
)
def npu_hc_pre_v2(x, hc_fn, hc_scale, hc_base, hc_sinkhorn_iters, norm_eps, hc_eps):
    """`npu_mhc_pre`, with a product in HF32, and `npu_mhc_sinkhorn` of its third result.

    Every width is taken, where the card knows 4096 and 7168, so that small models run.
    """
    layer, post, mixing = npu_mhc_pre.as_function("body")(
        x, hc_fn, hc_scale, hc_base, norm_eps=norm_eps, hc_eps=hc_eps, inner_precise=1
    )[:3]
    mixing = npu_mhc_sinkhorn.as_function("body")(mixing, eps=hc_eps, num_iters=hc_sinkhorn_iters)
    return layer, post, mixing[0]


@npu_hc_pre_v2.meta
def _(x):
    tokens, n = x.shape[:-2], x.shape[-2]
    post = x.new_empty(*tokens, n, dtype=torch.float32)
    mixing = x.new_empty(*tokens, n, n, dtype=torch.float32)
    return x.new_empty(*tokens, x.shape[-1]), post, mixing


@npu_hc_pre_v2.check
def _(x, hc_fn, hc_scale, hc_base, hc_mult, hc_sinkhorn_iters):
    must.dtype("x", x, torch.bfloat16)
    must.ndim("x", x, 3, 4)
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.hold(x.shape[-2] == STREAMS, "x", f"of {STREAMS} streams", tuple(x.shape))
    must.choice("hc_mult", hc_mult, (STREAMS,))
    rows = STREAMS * (STREAMS + 2)
    for name, tensor, shape in (
        ("hc_fn", hc_fn, (rows, STREAMS * x.shape[-1])),
        ("hc_scale", hc_scale, (3,)),
        ("hc_base", hc_base, (rows,)),
    ):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, shape)
    most = 1 <= hc_sinkhorn_iters <= 100
    must.hold(most, "hc_sinkhorn_iters", "from 1 to 100", hc_sinkhorn_iters)


@ascend_op("npu_hc_post(Tensor x, Tensor residual, Tensor post, Tensor comb) -> Tensor out")
def npu_hc_post(x, residual, post, comb):
    """`npu_mhc_post`, with the arguments in another order: stream j is post[j] x + sum_i comb[i, j] residual[i]."""
    return npu_mhc_post.as_function("body")(residual, comb, x, post)


@npu_hc_post.meta
def _(residual):
    return torch.empty_like(residual, memory_format=torch.contiguous_format)


@npu_hc_post.check
def _(x, residual, post, comb):
    floats = (torch.float16, torch.bfloat16, torch.float32)
    must.dtype("x", x, *floats)
    must.ndim("x", x, 3)
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.same_dtype("residual", residual, "x", x)
    batch, length, width = x.shape
    must.shape("residual", residual, (batch, length, None, width))
    streams = residual.shape[2]
    must.dtype("post", post, *floats)
    must.shape("post", post, (batch, length, streams))
    must.same_dtype("comb", comb, "post", post)
    must.shape("comb", comb, (batch, length, streams, streams))
