"""npu_moe_distribute_combine_setup in a mirrored group: refusals. On ranks: test_moe_halves_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.halves_support import DOMAIN, a5, combine_setup, spoiled
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    ({"moe_expert_num": 64}, "'moe_expert_num' must be 32, but received 64"),
    ({"shared_expert_num": 1}, "'shared_expert_num' must be left at 0"),
    ({"comm_quant_mode": 2}, "'comm_quant_mode' must be left at 0"),
    ({"expand_x": lambda: make(96, 4096)}, "'expand_x' must be of dtype"),
    ({"expand_x": lambda: make(96, 1024, dtype=torch.float16)},
     "'expand_x' must be of H 4096 or 7168, but received 1024"),
    ({"expand_x": lambda: make(95, 4096, dtype=torch.float16)}, "'expand_x' must be of A = 96 rows or more"),
    ({"expert_ids": lambda: torch.arange(5).int().repeat(8, 1).npu()},
     "'expert_ids' must be of K 6 or 8, but received 5"),
    ({"assist_info_for_combine": lambda: torch.zeros(96, dtype=torch.int32).npu()},
     r"'assist_info_for_combine' must be of A \* 128 = 12288 values"),
    ({"assist_info_for_combine": lambda: torch.full((12288,), 97, dtype=torch.int32).npu()},
     "'assist_info_for_combine' must be growing prefix sums up to A = 96"),
]  # fmt: skip


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    with a5():
        given = spoiled(combine_setup(), change)
        with pytest.raises(
            (RuntimeError, NotImplementedError),
            match=f"npu_moe_distribute_combine_setup: argument {message}",
        ):
            torch_npu.npu_moe_distribute_combine_setup(**given)


def test_commands():
    """A command a row says its rank, the last two how many rows each rank gets."""
    with a5():
        _, info = torch_npu.npu_moe_distribute_combine_setup(**combine_setup())
        table = info.view(98, 16).cpu()
        ranks = torch.arange(96) // 8 % 2
        assert torch.equal(table[:96, 0], torch.ones(96).int()) and torch.equal(
            table[:96, 1], ranks.int()
        )
        assert table[96:, 0].tolist() == [48, 48]
