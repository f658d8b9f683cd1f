"""npu_moe_update_expert: logical experts to physical ones, and pruning by weight."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_moe_update_expert(Tensor expert_ids, Tensor eplb_table, *, Tensor? expert_scales=None,"
    " Tensor? pruning_threshold=None, Tensor? active_mask=None, int local_rank_id=-1,"
    " int world_size=-1, int balance_mode=0) -> (Tensor, Tensor)",
    chips=("A3", "A5"),
)
def npu_moe_update_expert(
    expert_ids,
    eplb_table,
    expert_scales,
    pruning_threshold,
    active_mask,
    local_rank_id,
    world_size,
    balance_mode,
):
    r"""The copy of its expert that each token uses, and which experts it leaves out.

    An expert of c copies is used by rank r at copy $\lfloor r / \lceil R / c \rceil \rfloor$ (R the
    world size), or with `balance_mode` 1 by token i at copy i mod c. A token keeps an expert where

    $$ \mathrm{scale}_k \ge \mathrm{threshold}_k \sum_j \mathrm{scale}_j $$

    Args:
        expert_ids: the logical experts of each token, (BS, K) int32 or int64.
        eplb_table: a row for each logical expert: the number of its copies, then the physical expert
            of each, (experts, F) int32 with at most 1023 rows.
        expert_scales: the weights of the experts, (BS, K) float16, bfloat16 or float32.
        pruning_threshold: (K,) or (1, K) float32; with `expert_scales`.
        active_mask: False for tokens that keep no expert, (BS,) bool; with `expert_scales`.
        local_rank_id: r, in [0, world_size); for `balance_mode` 0.
        world_size: R, in [2, 768]; for `balance_mode` 0.
        balance_mode: 0 by rank, 1 by token.

    Returns:
        The physical experts, of the shape and dtype of `expert_ids`, and which are kept, (BS, K)
        bool: all, without `expert_scales`.

    Constraints:
        K at most 16 and at most the number of experts; BS at most 512.

    Differs from upstream: the card leaves the second result unwritten without `expert_scales`.
    """
    rows = eplb_table.long()[expert_ids.long()]
    copies = rows[..., 0]
    if balance_mode == 0:
        share = (world_size + copies - 1) // copies
        place = torch.full_like(copies, local_rank_id) // share
    else:
        place = torch.arange(expert_ids.shape[0], device=expert_ids.device)[:, None] % copies
    place = torch.where(copies == 1, torch.zeros_like(copies), place)
    physical = rows.gather(-1, place[..., None] + 1)[..., 0].to(expert_ids.dtype)
    if expert_scales is None:
        return physical, torch.ones_like(expert_ids, dtype=torch.bool)
    scales = wide(expert_scales)
    kept = scales >= scales.sum(-1, keepdim=True) * pruning_threshold.reshape(1, -1)
    return physical, kept if active_mask is None else kept & active_mask[:, None]


@npu_moe_update_expert.check
def _(
    expert_ids,
    eplb_table,
    expert_scales,
    pruning_threshold,
    active_mask,
    local_rank_id,
    world_size,
    balance_mode,
):
    must.dtype("expert_ids", expert_ids, torch.int32, torch.int64)
    must.ndim("expert_ids", expert_ids, 2)
    must.dtype("eplb_table", eplb_table, torch.int32)
    must.ndim("eplb_table", eplb_table, 2)
    (tokens, k), (experts, columns) = expert_ids.shape, eplb_table.shape
    shape = (tokens, k)
    must.hold(0 < tokens <= 512, "expert_ids", "of 1 to 512 tokens", shape)
    most = min(16, experts)
    must.hold(0 < k <= most, "expert_ids", f"of 1 to {most} experts a token", shape)
    table = (experts, columns)
    must.hold(0 < experts <= 1024, "eplb_table", "of 1 to 1024 rows", table)
    must.hold(columns >= 2, "eplb_table", "of at least 2 columns", table)
    must.choice("balance_mode", balance_mode, (0, 1))
    if balance_mode == 0:
        must.hold(2 <= world_size <= 768, "world_size", "in [2, 768]", world_size)
        must.hold(
            0 <= local_rank_id < world_size, "local_rank_id", "in [0, world_size)", local_rank_id
        )
        must.hold(
            columns <= world_size + 1, "eplb_table", f"of at most {world_size + 1} columns", table
        )
    _check_pruning(expert_scales, pruning_threshold, active_mask, tokens, k)
    if must.has_data(expert_ids):
        inside = bool(((expert_ids >= 0) & (expert_ids < experts)).all())
        must.hold(inside, "expert_ids", f"in [0, {experts - 1}]", expert_ids.tolist())
    if must.has_data(eplb_table):
        counts = eplb_table[:, 0]
        inside = bool(((counts >= 1) & (counts < columns)).all())
        must.hold(
            inside, "eplb_table", f"from 1 to {columns - 1} in its first column", counts.tolist()
        )


def _check_pruning(expert_scales, pruning_threshold, active_mask, tokens, k):
    if pruning_threshold is not None or active_mask is not None:
        must.present("expert_scales", expert_scales, "with 'pruning_threshold' or 'active_mask'")
    if expert_scales is not None:
        must.present("pruning_threshold", pruning_threshold, "with 'expert_scales'")
        must.dtype("expert_scales", expert_scales, torch.float16, torch.bfloat16, torch.float32)
        must.shape("expert_scales", expert_scales, (tokens, k))
        must.dtype("pruning_threshold", pruning_threshold, torch.float32)
        flat = pruning_threshold.dim() == 1
        must.shape("pruning_threshold", pruning_threshold, (k,) if flat else (1, k))
    must.dtype("active_mask", active_mask, torch.bool)
    must.shape("active_mask", active_mask, (tokens,))


def _table(make):
    rows = [[1, 3, 0], [2, 0, 4], [2, 1, 5], [1, 2, 0]]
    return torch.tensor(rows, dtype=torch.int32).to(make(1).device)


npu_moe_update_expert.samples = [
    Sample(
        lambda make: (make(5, 3, dtype=torch.int32, low=0, high=4), _table(make)),
        lambda make: {
            "expert_scales": make(5, 3, low=0).bfloat16(),
            "pruning_threshold": make(3, low=0.1, high=0.4),
            "active_mask": make(5, dtype=torch.bool),
            "local_rank_id": 3,
            "world_size": 4,
        },
    ),
    Sample(
        lambda make: (make(6, 2, dtype=torch.int64, low=0, high=4), _table(make)),
        {"balance_mode": 1},
    ),
]
