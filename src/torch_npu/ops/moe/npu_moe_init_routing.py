"""npu_moe_init_routing: the tokens of each expert side by side."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.moe._routing import FLOATS


@npu_op(
    "npu_moe_init_routing(Tensor x, Tensor row_idx, Tensor expert_idx, int active_num) "
    "-> (Tensor, Tensor, Tensor)"
)
def npu_moe_init_routing(x, row_idx, expert_idx, active_num):
    r"""Sorts the (token, expert) pairs by expert, ties as they stand, and copies the tokens.

    $$ expert, source = \mathrm{sort}(expert\_idx, row\_idx), \quad
       expanded\_x_i = x_{source_i \bmod N}, \quad expanded\_row\_idx_{source_i} = i $$

    Args:
        x: the tokens, (N, H), sizes below $2^{24}$; float16, bfloat16 or float32.
        row_idx: the number of each pair, (N, K), int32, a permutation of 0 .. N * K - 1 whose
            remainder by N is the token (third result of `npu_moe_gating_top_k_softmax`).
        expert_idx: the experts of each token, (N, K), int32.
        active_num: at most how many tokens the result holds, counted before the expansion by K.

    Returns:
        The tokens in the experts' order (min(N, active_num) * K, H) with the dtype of `x`; where
        each pair went (N * K), int32; the sorted experts (N * K), int32.
    """
    expert, order = torch.sort(expert_idx.reshape(-1), stable=True)
    source = row_idx.reshape(-1).index_select(0, order)
    places = torch.arange(source.numel(), dtype=torch.int32, device=x.device)
    went = torch.zeros_like(source).scatter_(0, source.long(), places)
    rows = min(active_num, x.size(0)) * expert_idx.size(1)
    return x.index_select(0, source[:rows] % max(x.size(0), 1)), went, expert


@npu_moe_init_routing.check
def _(x, row_idx, expert_idx, active_num):
    must.dtype("x", x, *FLOATS)
    must.ndim("x", x, 2)
    must.hold(max(x.shape) < 2**24, "x", "of sizes below 2**24", tuple(x.shape))
    must.dtype("expert_idx", expert_idx, torch.int32)
    must.shape("expert_idx", expert_idx, (x.size(0), None))
    must.dtype("row_idx", row_idx, torch.int32)
    must.shape("row_idx", row_idx, tuple(expert_idx.shape))
    must.hold(active_num >= 0, "active_num", "at least 0", active_num)
    inside("row_idx", row_idx, row_idx.numel())


@npu_moe_init_routing.native
def _(x, row_idx, expert_idx, active_num):
    expert, order = torch.sort(expert_idx.reshape(-1), stable=True)
    source = row_idx.reshape(-1).index_select(0, order)
    went = torch.zeros_like(source)
    went[source.long()] = torch.arange(source.numel(), dtype=torch.int32)
    rows = min(active_num, x.size(0)) * expert_idx.size(1)
    taken = torch.ops.softnpu.take_rows(x, source[:rows] % max(x.size(0), 1), None)
    return taken, went, expert


npu_moe_init_routing.samples = [
    Sample(
        lambda make: (
            make(4, 6),
            torch.arange(8, dtype=torch.int32, device=make(1).device).reshape(2, 4).t(),
            make(4, 2, dtype=torch.int32, low=0, high=3),
            4,
        ),
    ),
    Sample(
        lambda make: (
            make(4, 6),
            torch.arange(8, dtype=torch.int32, device=make(1).device).reshape(2, 4).t(),
            make(4, 2, dtype=torch.int32, low=0, high=3),
            2,
        ),
        name="two active",
    ),
]  # fmt: skip
