"""A small valid call of npu_alltoallv_gmm and npu_gmm_alltoallv in a mirrored group, and what both refuse."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.support import make

COUNTS = [1] * 16

REFUSED = [
    ({"ep_world_size": 4}, "'ep_world_size' must be 8, 16, 32, 64 or 128, but received 4"),
    ({"hcom": ""}, "'hcom' must be a name of 1 to 127 characters"),
    (
        {"send_counts": [1] * 8},
        r"'send_counts' must be of e \* ep_world_size = 16 counts, but received 8",
    ),
    ({"recv_counts": [-1] + [1] * 15}, r"'recv_counts' must be counts in \[0, 52428800\]"),
    (
        {"send_counts": [2] * 16},
        r"'send_counts' must be counts that add up to the rows of gmm_x \(16\)",
    ),
    ({"comm_mode": "x"}, "'comm_mode' must be"),
    ({"mm_x": (3, 6)}, "'mm_weight' must be given with mm_x"),
    ({"mm_x": (3, 6), "mm_weight": (7, 2)}, "'mm_weight' must be of H2 = 6, but received 7"),
    ({"mm_x": (3, 6), "mm_weight": (6, 65536)}, "'mm_weight' must be of N2 below 65536"),
    ({"send_counts_tensor": "int"}, "'send_counts_tensor' must be left at None"),
    ({"trans_gmm_weight": True}, "'gmm_weight' must be of H1 = 8, but received 4"),
]


def call(**changes: Any) -> dict[str, Any]:
    """The arguments, some of them changed; a shape stands for a tensor."""
    given: dict[str, Any] = {
        "gmm_x": (16, 8), "gmm_weight": (2, 8, 4), "hcom": "softnpu%mirror_8", "ep_world_size": 8,
        "send_counts": COUNTS, "recv_counts": COUNTS, **changes,
    }  # fmt: skip
    for name, value in given.items():
        if isinstance(value, tuple):
            given[name] = make(*value, dtype=torch.float16)
        elif value == "int":
            given[name] = make(16, dtype=torch.int32, high=2)
    return given
