"""npu_moe_distribute_dispatch_teardown in a mirrored group: refusals. On ranks: test_moe_halves_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.halves_support import DOMAIN, a5, spoiled, teardown
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    ({"y": lambda: make(48, 4096)}, "'y' must be of the dtype of 'x'"),
    ({"y": lambda: make(48, 4095, dtype=torch.bfloat16)}, r"'y' must be of shape \(48, 4096\)"),
    ({"comm_cmd_info": lambda: torch.zeros(16, dtype=torch.int32).npu()},
     r"'comm_cmd_info' must be of shape \(1280\)"),
    ({"expert_token_nums_type": 0}, "'expert_token_nums_type' must be 1, but received 0"),
    ({"quant_mode": 4}, "'y' must be of dtype"),
]  # fmt: skip


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    with a5():
        given = spoiled(teardown(), change)
        with pytest.raises(
            (RuntimeError, NotImplementedError),
            match=f"npu_moe_distribute_dispatch_teardown: argument {message}",
        ):
            torch_npu.npu_moe_distribute_dispatch_teardown(**given)


def test_mirrored_rows():
    """Both ranks send all their rows here: each expert has the tokens of one rank, then of the other."""
    with a5():
        given = teardown()
        rows, _, info, nums = torch_npu.npu_moe_distribute_dispatch_teardown(**given)
        assert torch.equal(rows[:96], given["x"].repeat(12, 1))
        assert nums.tolist() == [16] * 6 + [0] * 10
        assert info[:12].tolist() == list(range(8, 97, 8)) and info[12:32].tolist() == [96] * 20


def test_room_for_a_larger_rank():
    with a5():
        given = teardown()
        rows, *_ = torch_npu.npu_moe_distribute_dispatch_teardown(**given, global_bs=32)
        assert rows.shape == (192, 4096) and rows[96:].abs().sum() == 0
