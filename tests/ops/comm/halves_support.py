"""A valid call of each half of dispatch and combine in a mirrored group of two, to be spoiled by tests."""

from __future__ import annotations

from typing import Any

import torch

import torch_npu
from softnpu import settings
from tests.ops.support import make

#: errors that all four halves share
DOMAIN = [
    ({"group_ep": "nobody"}, "'group_ep' must be the name of a group"),
    ({"ep_world_size": 1}, r"'ep_world_size' must be in \[2, 384\], but received 1"),
    ({"ep_world_size": 4}, r"'ep_world_size' must be the number of ranks of the group \(2\)"),
    ({"ep_rank_id": 1}, r"'ep_rank_id' must be this rank's number in the group \(0\)"),
    ({"moe_expert_num": 33}, r"'moe_expert_num' must be a multiple of ep_world_size \(2\) up to 512"),
    ({"expert_shard_type": 1}, "'expert_shard_type' must be left at 0"),
    ({"shared_expert_num": 5}, r"'shared_expert_num' must be in \[0, 4\], but received 5"),
    ({"shared_expert_rank_num": 1}, "'shared_expert_rank_num' must be left at 0"),
    ({"global_bs": 3}, r"'global_bs' must be 0, or the largest BS .* \(at least 16\), but received 3"),
    ({"comm_type": 0}, r"'comm_type' must be 2 \(URMA\), but received 0"),
    ({"comm_alg": "fullmesh"}, "'comm_alg' must be '', but received 'fullmesh'"),
]  # fmt: skip


def a5() -> Any:
    return settings.override(soc="Ascend950")


def spoiled(given: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {**given, **{k: v() if callable(v) else v for k, v in change.items()}}


def setup() -> dict[str, Any]:
    """Eight tokens that all have experts 0 to 5: this rank's and, mirrored, the other one's."""
    ids = torch.arange(6).int().repeat(8, 1).npu()
    return {
        "x": make(8, 4096, dtype=torch.bfloat16), "expert_ids": ids, "group_ep": "softnpu%mirror_2",
        "ep_world_size": 2, "ep_rank_id": 0, "moe_expert_num": 32, "shared_expert_num": 0, "comm_type": 2,
    }  # fmt: skip


def teardown() -> dict[str, Any]:
    given = setup()
    y, _, info = torch_npu.npu_moe_distribute_dispatch_setup(**given)
    return {**given, "y": y, "comm_cmd_info": info}


def combine_setup() -> dict[str, Any]:
    given = teardown()
    rows, _, info, _ = torch_npu.npu_moe_distribute_dispatch_teardown(**given)
    for name in ("x", "y", "comm_cmd_info"):
        given.pop(name)
    return {**given, "expand_x": rows, "assist_info_for_combine": info}


def combine_teardown() -> dict[str, Any]:
    given = combine_setup()
    small, info = torch_npu.npu_moe_distribute_combine_setup(**given)
    given.pop("assist_info_for_combine")
    places = torch.arange(8).repeat_interleave(6).int().npu()
    return {
        **given, "quant_expand_x": small, "expand_idx": places, "expert_scales": make(8, 6),
        "comm_cmd_info": info,
    }  # fmt: skip
