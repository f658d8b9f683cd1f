"""npu_moe_distribute_combine_v2 in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.moe_support import DOMAIN, combine
from tests.ops.families import as_chip
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    ({"expand_x": lambda: make(3, 32, dtype=torch.bfloat16)}, "'expand_x' must be of A = "),
    ({"expert_scales": lambda: make(4, 3)}, "'expert_scales' must be of shape"),
    (
        {"ep_send_counts": lambda: make(2, dtype=torch.int32, high=2)},
        "'ep_send_counts' must be of at least",
    ),
    ({"comm_quant_mode": 2}, "'comm_quant_mode' must be 0"),
    ({"copy_expert_num": 1}, "'ori_x' must be given when copy_expert_num"),
    ({"elastic_info": lambda: make(4)}, "'elastic_info' must be left at None"),
    (
        {"shared_expert_x": lambda: make(4, 32, dtype=torch.bfloat16)},
        "'shared_expert_x' must be left at None",
    ),
    (
        {"assist_info_for_combine": lambda: make(9, dtype=torch.int32, high=2)},
        "'assist_info_for_combine' must be of A",
    ),
]


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    given = combine(2)
    given.update({k: v() if callable(v) else v for k, v in change.items()})
    with pytest.raises(
        (RuntimeError, NotImplementedError),
        match=f"npu_moe_distribute_combine_v2: argument {message}",
    ):
        torch_npu.npu_moe_distribute_combine_v2(**given)


@pytest.mark.parametrize("alg,refused", [("ccu", None), ("fullmesh_v1", "'' or 'ccu'")])
def test_algorithms_of_ascend950(alg, refused):
    with as_chip("Ascend950"):
        given = combine(2, hidden=1024) | {"comm_alg": alg}
        if refused:
            with pytest.raises(RuntimeError, match=f"'comm_alg' must be {refused}, but received"):
                torch_npu.npu_moe_distribute_combine_v2(**given)
        else:
            assert torch_npu.npu_moe_distribute_combine_v2(**given).shape == (4, 1024)
