"""npu_moe_distribute_dispatch in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.moe_support import DOMAIN, dispatch, ids
from tests.ops.families import as_chip
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


@pytest.mark.family("A2")
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


@pytest.mark.parametrize("soc,ranks,refused", [
    ("Ascend950", 4, None),
    ("Ascend950", 12, "2, 4, 8, 16, 32, 64, 128, 144, 256 or 288"),
    ("Ascend910_9391", 12, "8, 16, 32, 64, 128, 144, 256 or 288"),
])  # fmt: skip
def test_ranks_after_a2(soc, ranks, refused):
    """CANN's host code for Ascend950 takes 2 and 4 ranks besides those of A3."""
    with as_chip(soc):
        given = dispatch(1) | {"x": make(4, 7168, dtype=torch.bfloat16)}
        given |= {"group_ep": f"softnpu%mirror_{ranks}", "ep_world_size": ranks}
        given["moe_expert_num"] = 2 * ranks if refused is None else ranks
        if refused:
            with pytest.raises(RuntimeError, match=f"'ep_world_size' must be {refused}"):
                torch_npu.npu_moe_distribute_dispatch(**given)
        else:
            rows = torch_npu.npu_moe_distribute_dispatch(**given)[0]
            assert torch.equal(rows[: 8 * ranks], given["x"].repeat(2 * ranks, 1))
