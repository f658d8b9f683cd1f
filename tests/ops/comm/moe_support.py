"""A small valid call of each routing operator in a mirrored group, to be spoiled by tests."""

from __future__ import annotations

from typing import Any

import torch

import torch_npu
from tests.ops.support import make


def ids(tokens: int = 4, k: int = 2, first: int = 0) -> torch.Tensor:
    return (torch.arange(k) + first).int().repeat(tokens, 1).npu()


def dispatch(version: int, hidden: int = 32) -> dict[str, Any]:
    ranks = 2 if version == 2 else 16
    return {
        "x": make(4, hidden, dtype=torch.bfloat16), "expert_ids": ids(), "group_ep": f"softnpu%mirror_{ranks}",
        "ep_world_size": ranks, "ep_rank_id": 0, "moe_expert_num": 2 * ranks,
    }  # fmt: skip


def combine(version: int, hidden: int = 32) -> dict[str, Any]:
    given = dispatch(version, hidden)
    run = (
        torch_npu.npu_moe_distribute_dispatch_v2
        if version == 2
        else torch_npu.npu_moe_distribute_dispatch
    )
    if version == 1:  # every expert once, so that mirrored ranks agree
        given["expert_ids"] = torch.arange(32).int().view(4, 8).npu()
    rows, _, info, _, counts, _, _ = run(**given)
    given.pop("x")
    third = "assist_info_for_combine" if version == 2 else "expand_idx"
    scales = make(*given["expert_ids"].shape)
    return {
        **given,
        "expand_x": rows,
        third: info,
        "ep_send_counts": counts,
        "expert_scales": scales,
    }


def combine_add_rms_norm() -> dict[str, Any]:
    given = combine(2)
    given["expand_idx"] = given.pop("assist_info_for_combine")
    return {
        **given, "residual_x": make(4, 1, 32, dtype=torch.bfloat16), "gamma": make(32, dtype=torch.bfloat16),
    }  # fmt: skip


DOMAIN = [
    ({"group_ep": "nobody"}, "'group_ep' must be the name of a group"),
    (
        {"ep_rank_id": 1},
        r"'ep_rank_id' must be this rank's number in the group \(0\), but received 1",
    ),
    ({"ep_rank_id": -1}, "'ep_rank_id' must be in"),
    ({"tp_world_size": 2}, "'tp_world_size' must be 0 or 1, but received 2"),
    ({"tp_rank_id": 1}, "'tp_rank_id' must be left at 0"),
    ({"expert_shard_type": 1}, "'expert_shard_type' must be left at 0"),
    ({"shared_expert_rank_num": 1}, "'shared_expert_rank_num' must be left at 0"),
    ({"global_bs": 3}, "'global_bs' must be 0, or the largest BS"),
]
