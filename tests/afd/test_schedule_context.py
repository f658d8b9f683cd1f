"""torch_npu._afd: the schedule context, its tables in the window, and what it refuses."""

import pytest
import torch

import torch_npu
from torch_npu.ops._shared import _schedule_context as contexts

SIZES = {
    "session_num": 3, "micro_batch_num": 2, "micro_batch_size": 4, "selected_expert_num": 5, "expert_num": 8,
    "attn_to_ffn_token_size": 1024, "ffn_to_attn_token_size": 512,
}  # fmt: skip
TABLE = {0: 3 * 2 * (2 + 4 * 5) * 4, 1: 2 * 4 * 5 * 4}


def make_holder(mode, window, **changes):
    part = ("ffn", "attention")[mode]
    places = {f"{part}_window": window.data_ptr(), f"{part}_window_size": window.numel()}
    return torch_npu._afd.create_schedule_context_holder(mode, **{**SIZES, **places, **changes})


@pytest.mark.parametrize("mode", [0, 1])
def test_fields_and_tables(mode):
    window = torch.ones(8192, dtype=torch.int8, device="npu")
    holder = make_holder(mode, window)
    context = holder.get_schedule_context_tensor()
    assert context.shape == (1024,) and context.dtype == torch.int8 and context.device.type == "npu"
    fields = contexts.Context("test", "context", context.cpu())
    part = ("ffn", "attention")[mode]
    for name, value in {**SIZES, "schedule_mode": mode, "run_flag": 1}.items():
        assert fields[name] == value
    start = -(-TABLE[mode] // 512) * 512
    assert fields[f"{part}.token_info_buf"] == window.data_ptr()
    assert fields[f"{part}.token_info_buf_size"] == TABLE[mode]
    assert fields[f"{part}.token_data_buf"] == window.data_ptr() + start
    assert fields[f"{part}.token_data_buf_size"] == 8192 - start
    table = window[: TABLE[mode]].view(torch.int32).cpu()
    if mode == 0:
        rows = table.view(6, 22)
        assert (rows[:, :2] == 0).all() and (rows[:, 2:] == 2**31 - 1).all()
        assert fields["ffn.expert_ids_buf_size"] == 3 * 4 * 5 * 4
    else:
        assert (table == 0).all() and fields["attention.micro_batch_id"] == 1
    assert (window[start:] == 1).all()


def test_stop_and_information():
    window = torch.ones(8192, dtype=torch.int8, device="npu")
    holder = make_holder(0, window)
    assert "session_num=3" in holder.get_schedule_context_info()
    assert "ffn info: token_info_buf=" in holder.get_schedule_context_info()
    holder.stop_schedule()
    assert "run_flag=0" in holder.get_schedule_context_info()


@pytest.mark.parametrize(
    "mode,changes,message",
    [
        (0, {"session_num": 0}, "'session_num' must be greater than 0, but received 0"),
        (0, {"expert_num": 0}, "'expert_num' must be greater than 0"),
        (0, {"micro_batch_size": 2**32}, "'micro_batch_size' must be of 32 bits without a sign"),
        (0, {"attn_to_ffn_token_size": 1023}, "'attn_to_ffn_token_size' must be a multiple of 512"),
        (0, {"ffn_window": 0}, "'ffn_window' must be greater than 0"),
        (1, {"attention_window_size": 511}, "'attention_window_size' must be greater than 512, but received 511"),
        (0, {"ffn_window": 4096}, "'ffn_window' must have ffn.token_info_buf the address of device memory"),
    ],
)  # fmt: skip
def test_bad_input(mode, changes, message):
    window = torch.ones(8192, dtype=torch.int8, device="npu")
    with pytest.raises(RuntimeError, match=f"create_schedule_context_holder: argument {message}"):
        make_holder(mode, window, **changes)


def test_another_mode_is_refused():
    with pytest.raises(
        RuntimeError, match=r"'schedule_mode' must be 0 \(FFN\) or 1 \(attention\), but received 2"
    ):
        torch_npu._afd.create_schedule_context_holder(2, **SIZES)
