"""npu_moe_distribute_combine in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.moe_support import DOMAIN, combine
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    ({"expand_x": lambda: make(3, 32, dtype=torch.bfloat16)}, "'expand_x' must be of A = "),
    ({"expert_scales": lambda: make(4, 3)}, "'expert_scales' must be of shape"),
    (
        {"ep_send_counts": lambda: make(2, dtype=torch.int32, high=2)},
        "'ep_send_counts' must be of at least",
    ),
    ({"out_dtype": 1}, "'out_dtype' must be left at 0"),
    ({"group_list_type": 1}, "'group_list_type' must be left at 0"),
    ({"comm_quant_mode": 1}, "'comm_quant_mode' must be 0 or 2"),
    (
        {"shared_expert_x": lambda: make(4, 32, dtype=torch.bfloat16)},
        "'shared_expert_x' must be left at None",
    ),
    (
        {"expand_idx": lambda: make(3, dtype=torch.int32, high=2)},
        r"'expand_idx' must be of shape \(32\)",
    ),
]


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    given = combine(1)
    given.update({k: v() if callable(v) else v for k, v in change.items()})
    with pytest.raises(
        (RuntimeError, NotImplementedError), match=f"npu_moe_distribute_combine: argument {message}"
    ):
        torch_npu.npu_moe_distribute_combine(**given)
