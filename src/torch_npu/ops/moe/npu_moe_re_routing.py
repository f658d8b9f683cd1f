"""npu_moe_re_routing: tokens that came rank by rank, put expert by expert."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import first_bad
from torch_npu.ops.moe._routing import inverse_permutation

HIFLOAT8, FLOAT4_E2M1, FLOAT4_E1M2 = 290, 296, 297


@npu_op(
    "npu_moe_re_routing(Tensor tokens, Tensor expert_token_num_per_rank, *, "
    "Tensor? per_token_scales=None, int expert_token_num_type=1, int idx_type=0, "
    "int? tokens_dtype=None) -> (Tensor, Tensor, Tensor, Tensor)"
)
def npu_moe_re_routing(
    tokens,
    expert_token_num_per_rank,
    per_token_scales,
    expert_token_num_type,
    idx_type,
    tokens_dtype,
):
    r"""Reorders blocks of tokens from (rank, expert) order to (expert, rank) order.

    $$ src(i, j) = \sum_{(r,e) < (i,j)} n_{r,e}, \qquad
       dst(i, j) = \sum_{(e,r) < (j,i)} n_{r,e} $$

    The $n_{i,j}$ tokens that rank i sent for expert j move from offset src to offset dst.

    Args:
        tokens: (A, H) with 0 < H < 16384; float16, bfloat16 or int8, on Ascend 950 also the 8-bit
            floats, and bytes that `tokens_dtype` names.
        expert_token_num_per_rank: the counts n, (ranks, experts), int32 or int64. Tokens beyond
            their sum stay behind the others, in order.
        per_token_scales: moves with the tokens, (A), float32; on Ascend 950 also float8_e8m0fnu or
            bytes, with A as first size.
        expert_token_num_type: 1, counts (the only value that upstream supports).
        idx_type: 0, the source of each result; 1 (Ascend 950), the destination of each source.
        tokens_dtype: what the bytes of `tokens` are, on Ascend 950: hifloat8, float4_e2m1fn_x2 or
            float4_e1m2fn_x2.

    Returns:
        The tokens (A, H); their scales, zeros where none came; the index (A), int32; the tokens of
        each expert (experts), with the dtype of the counts.

    Differs from upstream:
        Counts of 0 are allowed, as in upstream's example.
    """
    counts = expert_token_num_per_rank
    ranks, experts = counts.shape
    positions = torch.arange(tokens.size(0), device=tokens.device)
    ends = counts.long().reshape(-1).cumsum(0)
    block = torch.searchsorted(ends, positions, right=True)
    key = block % max(experts, 1) * ranks + block // max(experts, 1)
    key = torch.where(block < ranks * experts, key, ranks * experts)
    source = torch.argsort(key, stable=True)
    index = source if idx_type == 0 else inverse_permutation(source)
    if per_token_scales is None:
        scales = torch.zeros(tokens.size(0), dtype=torch.float32, device=tokens.device)
    else:
        scales = _rows(per_token_scales, source)
    each = counts.sum(0, dtype=counts.dtype)
    each = each if expert_token_num_type == 1 else each.cumsum(0, dtype=counts.dtype)
    moved = _rows(tokens if tokens_dtype is None else tokens.view(torch.uint8), source)
    return moved, scales, index.to(torch.int32), each


def _rows(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Rows in another order; small floats as bytes, since an older torch has no index for them."""
    if tensor.dtype.itemsize > 1:
        return tensor[source]
    return tensor.view(torch.uint8)[source].view(tensor.dtype)


@npu_moe_re_routing.check
def _(
    tokens,
    expert_token_num_per_rank,
    per_token_scales,
    expert_token_num_type,
    idx_type,
    tokens_dtype,
):
    newest = chips.current().family == "A5"
    kinds = [torch.float16, torch.bfloat16, torch.int8]
    if newest:
        kinds += [torch.float8_e4m3fn, torch.float8_e5m2]
    if tokens_dtype is not None:
        must.hold(newest, "tokens_dtype", "None on this chip", tokens_dtype)
        must.choice("tokens_dtype", tokens_dtype, (HIFLOAT8, FLOAT4_E2M1, FLOAT4_E1M2))
        kinds = [torch.uint8]
    must.dtype("tokens", tokens, *kinds)
    must.ndim("tokens", tokens, 2)
    columns = tokens.size(1)
    if newest:
        must.hold(columns > 0, "tokens", "of at least one column", columns)
    else:
        must.hold(0 < columns <= 16384, "tokens", "of 1 to 16384 columns", columns)
    counts = expert_token_num_per_rank
    must.dtype("expert_token_num_per_rank", counts, torch.int32, torch.int64)
    must.ndim("expert_token_num_per_rank", counts, 2)
    if newest:
        scales = (torch.float32, torch.float8_e8m0fnu, torch.uint8)
        must.dtype("per_token_scales", per_token_scales, *scales)
        must.ndim("per_token_scales", per_token_scales, 1, 3)
    else:
        must.dtype("per_token_scales", per_token_scales, torch.float32)
        must.ndim("per_token_scales", per_token_scales, 1)
    if per_token_scales is not None and per_token_scales.dim() == 3:
        must.dtype("tokens", tokens, torch.float8_e4m3fn, torch.float8_e5m2)
        must.shape("per_token_scales", per_token_scales, (None, None, 2))
    if per_token_scales is not None:
        rest = tuple(per_token_scales.shape[1:])
        must.shape("per_token_scales", per_token_scales, (tokens.size(0), *rest))
    must.choice("expert_token_num_type", expert_token_num_type, (1,))
    must.choice("idx_type", idx_type, (0, 1) if newest else (0,))
    if must.has_data(counts):
        host = counts.cpu()
        first_bad("expert_token_num_per_rank", "non-negative", host, host < 0)


npu_moe_re_routing.samples = [
    Sample(
        lambda make: (
            make(10, 4, dtype=torch.float16),
            torch.tensor([[1, 2, 1], [3, 1, 2]], dtype=torch.int32, device=make(1).device),
        ),
        lambda make: {"per_token_scales": make(10)},
    ),
    Sample(
        lambda make: (
            make(4, 8, dtype=torch.int8, low=-9, high=9),
            torch.tensor([[0, 2], [2, 0]], device=make(1).device),
        ),
        name="experts without tokens",
    ),
]  # fmt: skip
