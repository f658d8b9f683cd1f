"""npu_moe_distribute_combine_teardown in a mirrored group: sums and refusals. On ranks: test_moe_halves_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.halves_support import DOMAIN, a5, combine_teardown, spoiled
from tests.ops.support import assert_accurate, make

WRONG = [
    *DOMAIN,
    ({"quant_expand_x": lambda: torch.zeros(96, 512, dtype=torch.int8).npu()},
     r"'quant_expand_x' must be of shape \(96, 6144\)"),
    ({"expand_idx": lambda: torch.full((48,), 8, dtype=torch.int32).npu()},
     r"'expand_idx' must be values in \[0, 8\), but received \(8, 8\)"),
    ({"expert_scales": lambda: make(8, 5)}, r"'expert_scales' must be of shape \(8, 6\)"),
    ({"comm_cmd_info": lambda: torch.zeros(16, dtype=torch.int32).npu()},
     r"'comm_cmd_info' must be of shape \(1568\)"),
    ({"comm_quant_mode": 1}, "'comm_quant_mode' must be left at 0"),
    ({"shared_expert_x": lambda: make(8, 4096)}, "'shared_expert_x' must be of the dtype of 'expand_x'"),
    ({"shared_expert_x": lambda: make(4, 4096, dtype=torch.bfloat16)},
     r"'shared_expert_x' must be of shape \(8, 4096\), or \(a, b, 4096\)"),
    ({"x_active_mask": lambda: make(7, dtype=torch.bool)}, r"'x_active_mask' must be of shape \(8\)"),
]  # fmt: skip


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    with a5():
        given = spoiled(combine_teardown(), change)
        with pytest.raises(
            (RuntimeError, NotImplementedError),
            match=f"npu_moe_distribute_combine_teardown: argument {message}",
        ):
            torch_npu.npu_moe_distribute_combine_teardown(**given)


def test_sum_and_the_shared_expert():
    """All experts give a token back as it came: the sum of its weights times the token."""
    with a5():
        given = combine_teardown()
        token = given["expand_x"][:8].cpu().double()
        want = token * given["expert_scales"].cpu().double().sum(1, keepdim=True)
        y = torch_npu.npu_moe_distribute_combine_teardown(**given)
        assert_accurate(y, want, want.bfloat16())
        extra = make(8, 4096, dtype=torch.bfloat16)
        y = torch_npu.npu_moe_distribute_combine_teardown(**given, shared_expert_x=extra)
        want = want + extra.cpu().double()
        assert_accurate(y, want, want.bfloat16())
