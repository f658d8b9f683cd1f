"""Attention and FFN workers that run apart (AFD): the schedule context that their operators share."""

from torch_npu._afd._schedule_context import ScheduleContextHolder

__all__ = ["create_schedule_context_holder"]


def create_schedule_context_holder(
    schedule_mode: int,
    session_num: int,
    micro_batch_num: int,
    micro_batch_size: int,
    selected_expert_num: int,
    expert_num: int,
    attn_to_ffn_token_size: int,
    ffn_to_attn_token_size: int,
    ffn_window: int = 0,
    ffn_window_size: int = 0,
    attention_window: int = 0,
    attention_window_size: int = 0,
) -> ScheduleContextHolder:
    """A context for FFN workers (schedule_mode 0) or attention workers (1), with its window at the given address.

    Tokens take so many bytes in a window, multiples of 512. The tables in the window are cleared.
    """
    holder = ScheduleContextHolder(
        schedule_mode, session_num, micro_batch_num, micro_batch_size, selected_expert_num, expert_num,
        attn_to_ffn_token_size, ffn_to_attn_token_size, ffn_window, ffn_window_size, attention_window,
        attention_window_size,
    )  # fmt: skip
    holder.init()
    return holder
