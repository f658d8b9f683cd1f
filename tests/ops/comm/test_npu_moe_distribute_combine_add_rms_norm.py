"""npu_moe_distribute_combine_add_rms_norm in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.moe_support import DOMAIN, combine_add_rms_norm
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    ({"expand_x": lambda: make(3, 32, dtype=torch.bfloat16)}, "'expand_x' must be of A = "),
    ({"expert_scales": lambda: make(4, 3)}, "'expert_scales' must be of shape"),
    (
        {"ep_send_counts": lambda: make(2, dtype=torch.int32, high=2)},
        "'ep_send_counts' must be of at least",
    ),
    ({"gamma": lambda: make(31, dtype=torch.bfloat16)}, r"'gamma' must be of shape \(32\)"),
    (
        {"residual_x": lambda: make(4, 32, dtype=torch.bfloat16)},
        r"'residual_x' must be of shape \(4, 1, 32\)",
    ),
    ({"norm_eps": -1.0}, "'norm_eps' must be not negative"),
    ({"comm_alg": "fullmesh"}, "'comm_alg' must be left at ''"),
    ({"shared_expert_num": 2}, "'shared_expert_num' must be 0 or 1, but received 2"),
]


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    given = combine_add_rms_norm()
    given.update({k: v() if callable(v) else v for k, v in change.items()})
    with pytest.raises(
        (RuntimeError, NotImplementedError),
        match=f"npu_moe_distribute_combine_add_rms_norm: argument {message}",
    ):
        torch_npu.npu_moe_distribute_combine_add_rms_norm(**given)
