"""Triton kernels of vllm-ascend that every step launches, as PyTorch code."""

from __future__ import annotations

import torch

from softnpu.triton import references

__all__ = ["slot_mapping"]


def slot_mapping(
    grid,
    num_tokens,
    max_num_tokens,
    query_start_loc_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    block_size,
    slot_mapping_ptr,
    KV_CACHE_BLOCK_SIZE,
    BLOCKS_PER_KV_BLOCK,
    TOTAL_CP_WORLD_SIZE,
    TOTAL_CP_RANK,
    CP_KV_CACHE_INTERLEAVE_SIZE,
    PAD_ID,
    **tiles,
):
    """The slot of each token in the KV cache, by its position and its request's block table; then PAD_ID.

    With several ranks of context parallelism, tokens of other ranks have PAD_ID, too. Block numbers go through float32, as
    in the kernel; blocks past the table's row are 0.
    """
    requests = grid[0] - 1
    bounds = query_start_loc_ptr[: requests + 1].long()
    first, last = int(bounds[0]), int(bounds[-1])
    position = positions_ptr[first:last].int()
    owner = torch.repeat_interleave(torch.arange(requests), bounds.diff())
    local = None
    if TOTAL_CP_WORLD_SIZE == 1:
        block, offset = position // block_size, position % block_size
    else:
        whole = KV_CACHE_BLOCK_SIZE * TOTAL_CP_WORLD_SIZE
        page, inside = position // whole, position % whole
        turn = inside // CP_KV_CACHE_INTERLEAVE_SIZE
        local = turn % TOTAL_CP_WORLD_SIZE == TOTAL_CP_RANK
        own = turn // TOTAL_CP_WORLD_SIZE * CP_KV_CACHE_INTERLEAVE_SIZE
        own = own + inside % CP_KV_CACHE_INTERLEAVE_SIZE
        block, offset = page * BLOCKS_PER_KV_BLOCK + own // block_size, own % block_size
    table = block_table_ptr.as_strided(
        (requests, block_table_stride), (block_table_stride, 1), block_table_ptr.storage_offset()
    )
    known = block < block_table_stride
    number = table[owner, block.long().clamp(max=block_table_stride - 1)].where(known, 0)
    slot = number.float().int() * block_size + offset
    if local is not None:
        slot = slot.where(local, PAD_ID)
    slot_mapping_ptr[first:last] = slot.to(slot_mapping_ptr.dtype)
    slot_mapping_ptr[num_tokens:max_num_tokens] = PAD_ID


references.register(
    "vllm_ascend.ops.triton.compute_slot_mapping._compute_slot_mapping_kernel",
    slot_mapping,
    "293575a6d19a1cb5",
)
