"""Templates of ATC's configuration for exports of several ranks: export.experimental.auto_atc_config_generated.

`model_relation_config.json` says which exported model runs where and which ranks form which group,
`numa_config.json` describes the machine: all ranks on one node, for the user to correct.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch.distributed as dist


def groups_of(proto: Any) -> dict[str, list[int]]:
    """The groups of the graph's collectives by name, with their ranks."""
    names = {op.attr["group_name"].s.decode() for op in proto.op if "group_name" in op.attr}
    return {
        name: dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(name))
        for name in sorted(names)
    }


def write_templates(proto: Any, folder: str, export_name: str) -> None:
    """Rank 0 of torch.distributed writes both files if the graph has collectives; nobody writes otherwise."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    groups = groups_of(proto)
    if dist.get_rank() != 0 or not groups:
        return
    ranks = range(dist.get_world_size())
    models = {rank: f"{export_name}{rank}" for rank in ranks}
    relation = {
        "deploy_config": [
            {"submodel_name": model, "deploy_device_id_list": f"0:0:{rank}"}
            for rank, model in models.items()
        ],
        "model_name_to_instance_id": [
            {"submodel_name": model, "model_instance_id": rank} for rank, model in models.items()
        ],
        "comm_group": [
            {"group_name": name, "group_rank_list": str(members)}
            for name, members in groups.items()
        ],
        "rank_table": [{"rank_id": rank, "model_instance_id": rank} for rank in ranks],
    }
    node = {
        "node_id": 0,
        "node_type": "ATLAS800",
        "ipaddr": "127.0.0.1",
        "port": 29500,
        "item_list": [{"item_id": rank} for rank in ranks],
    }
    numa = {
        "cluster": [{"cluster_nodes": [node], "nodes_toplogy": {}}],
        "item_def": [{"item_type": "Ascend910"}],
        "node_def": [{"item": [{"item_type": "Ascend910"}]}],
    }
    for name, content in (("model_relation_config", relation), ("numa_config", numa)):
        with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=4, ensure_ascii=False)
