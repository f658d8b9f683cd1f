"""npu_moe_distribute_dispatch_setup in a mirrored group: messages and refusals. On ranks: test_moe_halves_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.halves_support import DOMAIN, a5, setup, spoiled
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    ({"x": lambda: make(8, 512, dtype=torch.bfloat16)}, r"'x' must be of H in \[1024, 8192\], but received 512"),
    ({"x": lambda: make(8, 4096)}, "'x' must be of dtype"),
    ({"x": lambda: make(7, 4096, dtype=torch.bfloat16)}, r"'x' must be of shape \(8, \*\)"),
    ({"expert_ids": lambda: torch.zeros(8, 6, dtype=torch.int32).npu()}, "'expert_ids' must be different experts"),
    ({"expert_ids": lambda: torch.zeros(8, 17, dtype=torch.int32).npu()}, r"'expert_ids' must be of K in \(0, 16\]"),
    ({"scales": lambda: make(32, 4096)}, "'scales' must be left at None"),
    ({"quant_mode": 2}, "'quant_mode' must be 0 or 4, but received 2"),
    ({"quant_mode": 4}, "'y_dtype' must be given when quant_mode is 4"),
    ({"quant_mode": 4, "y_dtype": torch_npu.hifloat8}, "'y_dtype' must be"),
    ({"x_active_mask": lambda: torch.tensor([False, True] * 4).npu()}, "'x_active_mask' must be true values before"),
]  # fmt: skip


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    with a5():
        given = spoiled(setup(), change)
        with pytest.raises(
            (RuntimeError, NotImplementedError),
            match=f"npu_moe_distribute_dispatch_setup: argument {message}",
        ):
            torch_npu.npu_moe_distribute_dispatch_setup(**given)


@pytest.mark.family("A2")
def test_other_chips_have_no_such_operator():
    with pytest.raises(RuntimeError, match="npu_moe_distribute_dispatch_setup"):
        torch_npu.npu_moe_distribute_dispatch_setup(**setup())


def test_a_message_is_filled_up():
    """1040 values are 2080 bytes, up to 2560; with 8 bits, 1280 values, then 34 scales, up to 1536 bytes."""
    with a5():
        given = {**setup(), "x": make(8, 1040, dtype=torch.float16)}
        y, nth, info = torch_npu.npu_moe_distribute_dispatch_setup(**given)
        assert y.shape == (48, 1280) and nth.shape == (48,) and info.shape == ((48 + 32) * 16,)
        assert torch.equal(y[:8, :1040], given["x"]) and y[:, 1040:].abs().sum() == 0
        assert nth.view(8, 6)[:, 0].tolist() == list(range(8))
        y, _, _ = torch_npu.npu_moe_distribute_dispatch_setup(
            **given, quant_mode=4, y_dtype=torch_npu.float8_e5m2
        )
        assert y.shape == (48, 1536) and y.dtype == torch.float8_e5m2
        whole = torch_npu.npu_dynamic_mx_quant(given["x"], dst_type=torch_npu.float8_e5m2)
        assert torch.equal(y[:8, :1040].view(torch.uint8), whole[0].view(torch.uint8))
        assert torch.equal(y[:8, 1280:1314].view(torch.uint8), whole[1].view(8, 34))


def test_nobody_takes_part():
    with a5():
        mask = torch.zeros(8, dtype=torch.bool, device="npu")
        y, nth, _ = torch_npu.npu_moe_distribute_dispatch_setup(**setup(), x_active_mask=mask)
        assert y.abs().sum() == 0 and nth.sum() == 0
