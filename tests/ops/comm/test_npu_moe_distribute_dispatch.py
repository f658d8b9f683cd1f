"""npu_moe_distribute_dispatch in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.moe_support import DOMAIN, dispatch, ids
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    ({"ep_world_size": 12}, "'ep_world_size' must be a multiple of 8 up to 256, but received 12"),
    (
        {"moe_expert_num": 400},
        "'moe_expert_num' must be at most 24 experts a rank, but received 25",
    ),
    ({"x_active_mask": lambda: make(4, dtype=torch.bool)}, "'x_active_mask' must be left at None"),
    ({"quant_mode": 3}, "'quant_mode' must be 0 or 2"),
    ({"expert_token_nums_type": -1}, "'expert_token_nums_type' must be 0 or 1"),
    ({"x": lambda: make(4, 32, dtype=torch.int32, high=3)}, "'x' must be of dtype"),
    ({"expert_ids": lambda: ids(first=31)}, r"'expert_ids' must be values in \[0, 32\)"),
]


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    given = dispatch(1)
    given.update({k: v() if callable(v) else v for k, v in change.items()})
    with pytest.raises(
        (RuntimeError, NotImplementedError),
        match=f"npu_moe_distribute_dispatch: argument {message}",
    ):
        torch_npu.npu_moe_distribute_dispatch(**given)


def test_index_counts_tokens_of_the_same_expert():
    index = torch_npu.npu_moe_distribute_dispatch(**dispatch(1))[2]
    assert index.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and index.dtype == torch.int32
