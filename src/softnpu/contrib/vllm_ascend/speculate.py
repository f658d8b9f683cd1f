"""Speculative decoding of `_C_ascend`: the draft model's input from the tokens that the target model has accepted."""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must

__all__ = ["npu_copy_and_expand_eagle_inputs"]


@ascend_op(
    "npu_copy_and_expand_eagle_inputs(Tensor target_token_ids, Tensor target_positions, "
    "Tensor next_token_ids, Tensor query_start_loc, Tensor query_end_loc, int padding_token_id, "
    "int parallel_drafting_token_id, int num_padding_slots_per_request, bool shift_input_ids, "
    "int total_draft_tokens) -> (Tensor out_input_ids, Tensor out_positions, "
    "Tensor out_is_rejected_token_mask, Tensor out_is_masked_token_mask, "
    "Tensor out_new_token_indices, Tensor out_hidden_state_mapping)"
)
def npu_copy_and_expand_eagle_inputs(
    target_token_ids,
    target_positions,
    next_token_ids,
    query_start_loc,
    query_end_loc,
    padding_token_id,
    parallel_drafting_token_id,
    num_padding_slots_per_request,
    shift_input_ids,
    total_draft_tokens,
):
    """For each request: its accepted tokens, the next one, slots for tokens to be drafted, padding for the rejected.

    Request r has the input rows from `query_start_loc[r]` on; row `query_end_loc[r]` is the last accepted one. Its
    output starts `r` times the added slots later. With `shift_input_ids` the first accepted token is left out, so
    that one slot fewer is added and `out_hidden_state_mapping` says where the hidden state of each input row goes.
    """
    ids, positions, rejected, masked, new, mapping = _empty(
        target_token_ids, query_start_loc, num_padding_slots_per_request, total_draft_tokens
    )
    slots, shift = num_padding_slots_per_request, int(shift_input_ids)
    starts, ends = query_start_loc.tolist(), query_end_loc.tolist()
    for request, (start, following) in enumerate(zip(starts, starts[1:], strict=False)):
        valid = max(ends[request] - start + 1 - shift, 0)
        refused = max(following - ends[request] - 1, 0)
        first = start + request * (slots - shift)
        size = valid + slots + refused
        if shift and ends[request] == following and request + 2 < len(starts):
            size -= 1  # the last slot is the first one of the next request
        must.hold(
            first + size <= total_draft_tokens,
            "total_draft_tokens",
            f"at least {first + size}, where request {request} ends",
            total_draft_tokens,
        )
        row = torch.full((valid + slots + refused,), padding_token_id, dtype=torch.int32)
        row[:valid] = _accepted(target_token_ids, start + shift, valid, following, shift)
        row[valid] = next_token_ids[request]
        row[valid + 1 : valid + slots] = parallel_drafting_token_id
        place = torch.arange(row.shape[0], dtype=torch.int32)
        part = slice(first, first + size)
        ids[part] = row[:size]
        used = valid + slots
        origin = target_positions[min(start, target_positions.shape[0] - 1)]
        positions[part] = torch.where(place < used, origin + place, 0)[:size]
        rejected[part] = (place >= used)[:size]
        masked[part] = ((place > valid) & (place < used))[:size]
        new[request * slots : (request + 1) * slots] = first + valid + place[:slots]
        if shift:
            mapping[start:following] = first + torch.arange(following - start)
    return ids, positions, rejected, masked, new, mapping


def _accepted(tokens, first, count, following, shift):
    """`count` tokens from `first` on; the last one of the request, or with a shift of the batch, is repeated."""
    last = (tokens.shape[0] if shift else following) - 1
    if first > last:
        return 0
    return tokens[torch.arange(first, first + count).clamp(max=last)]


def _empty(tokens, starts, slots, total):
    def make(size, dtype):
        return tokens.new_zeros(size, dtype=dtype)

    i32, i8 = torch.int32, torch.int8
    drafts = make(total, i32), make(total, i32), make(total, i8), make(total, i8)
    return *drafts, make((starts.shape[0] - 1) * slots, i32), make(tokens.shape[0], i32)


@npu_copy_and_expand_eagle_inputs.meta
def _(target_token_ids, query_start_loc, num_padding_slots_per_request, total_draft_tokens):
    return _empty(
        target_token_ids, query_start_loc, num_padding_slots_per_request, total_draft_tokens
    )


@npu_copy_and_expand_eagle_inputs.check
def _(
    target_token_ids,
    target_positions,
    next_token_ids,
    query_start_loc,
    query_end_loc,
    num_padding_slots_per_request,
    total_draft_tokens,
):
    for name, tensor in (
        ("target_token_ids", target_token_ids),
        ("target_positions", target_positions),
        ("next_token_ids", next_token_ids),
        ("query_start_loc", query_start_loc),
        ("query_end_loc", query_end_loc),
    ):
        must.dtype(name, tensor, torch.int32)
        must.ndim(name, tensor, 1)
    requests = query_start_loc.shape[0] - 1
    must.hold(requests >= 0, "query_start_loc", "of at least one element", requests + 1)
    for name, tensor in (("next_token_ids", next_token_ids), ("query_end_loc", query_end_loc)):
        fits = tensor.shape[0] >= requests
        must.hold(fits, name, f"of at least {requests} elements", tuple(tensor.shape))
    rows = target_token_ids.shape[0]
    fits = target_positions.shape[0] >= rows
    must.hold(
        fits, "target_positions", f"of at least {rows} elements", tuple(target_positions.shape)
    )
    slots = num_padding_slots_per_request
    must.hold(slots >= 1, "num_padding_slots_per_request", "at least 1", slots)
    must.hold(total_draft_tokens >= 0, "total_draft_tokens", "not negative", total_draft_tokens)
