"""Triton kernels of vllm-ascend that every step launches, as PyTorch code."""

from __future__ import annotations

import torch

from softnpu.triton import references

__all__ = ["rotate", "rotate_one", "slot_mapping"]

_MODULE = "vllm_ascend.ops.triton"


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
    counts = bounds.diff()
    room = min(positions_ptr.numel(), slot_mapping_ptr.numel())
    if not 0 <= first <= last <= room or bool((counts < 0).any()):
        return NotImplemented
    position = positions_ptr[first:last].int()
    owner = torch.repeat_interleave(torch.arange(requests), counts)
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
    return None


def _rows(tensor, count, stride, width, offset=0):
    """(count, width) elements, a row every `stride`, of what a pointer points to."""
    at = tensor.storage_offset() + offset
    return tensor.as_strided((count, width), (stride, 1), at).float()


def _table(tensor, stride):
    """A table whose rows are `stride` apart."""
    width = tensor.shape[-1]
    rows = 1 + (tensor.numel() - width) // stride if tensor.is_contiguous() else tensor.shape[0]
    return tensor.as_strided((rows, width), (stride, 1), tensor.storage_offset())


def _angles(cos, cos_stride, sin, sin_stride, both, position, count, width):
    """(tokens, 1, width / 2) cosines and sines: rows of two tables, or of one table by the tokens' positions."""
    half = width // 2
    if both is None:
        found = _rows(cos, count, cos_stride, half), _rows(sin, count, sin_stride, half)
    else:
        place = position[:count].long().clamp(0, both.shape[0] - 1)  # the card reads anything there
        rows = both[place].float()
        found = rows[:, :half], rows[:, half:width]
    return tuple(part.unsqueeze(1) for part in found)


def _turn(tensor, stride, heads, size, width, cos, sin, halves):
    """Rotates the first `width` elements of each head in place."""
    shape = (cos.shape[0], heads, width)
    x = tensor.as_strided(shape, (stride, size, 1), tensor.storage_offset())
    half = width // 2
    first, second = (x[..., :half], x[..., half:]) if halves else (x[..., 0::2], x[..., 1::2])
    a, b = first.float(), second.float()
    turned = a * cos - b * sin, b * cos + a * sin  # both before either is written
    first.copy_(turned[0])
    second.copy_(turned[1])


def rotate(
    grid,
    q_ptr,
    q_row_stride,
    k_ptr,
    k_row_stride,
    cos_ptr,
    cos_row_stride,
    sin_ptr,
    sin_row_stride,
    cos_sin_ptr,
    cos_sin_row_stride,
    pos_ptr,
    num_tokens,
    n_qh,
    n_kh,
    hd,
    rope_dim,
    pad_rope_dim,
    BLOCK_SIZE_HEAD,
    IS_NEOX_STYLE,
    USE_COS_SIN,
):
    """Rotary embedding of queries and keys in place; halves of a head are pairs, or neighbors are."""
    if rope_dim != pad_rope_dim:  # the kernel then reads sines from behind the padding
        return NotImplemented
    both = _table(cos_sin_ptr, cos_sin_row_stride) if USE_COS_SIN else None
    cos, sin = _angles(
        cos_ptr, cos_row_stride, sin_ptr, sin_row_stride, both, pos_ptr, num_tokens, rope_dim,
    )  # fmt: skip
    _turn(q_ptr, q_row_stride, n_qh, hd, rope_dim, cos, sin, IS_NEOX_STYLE)
    _turn(k_ptr, k_row_stride, n_kh, hd, rope_dim, cos, sin, IS_NEOX_STYLE)
    return None


def rotate_one(
    grid,
    qk_ptr,
    qk_row_stride,
    cos_ptr,
    cos_row_stride,
    sin_ptr,
    sin_row_stride,
    cos_sin_ptr,
    cos_sin_row_stride,
    pos_ptr,
    num_tokens,
    n_h,
    hd,
    rope_dim,
    pad_n_h,
    pad_rope_dim,
    BLOCK_SIZE,
    IS_NEOX_STYLE,
    USE_COS_SIN,
):
    """`rotate` of one tensor."""
    if rope_dim != pad_rope_dim:
        return NotImplemented
    both = _table(cos_sin_ptr, cos_sin_row_stride) if USE_COS_SIN else None
    cos, sin = _angles(
        cos_ptr, cos_row_stride, sin_ptr, sin_row_stride, both, pos_ptr, num_tokens, rope_dim,
    )  # fmt: skip
    _turn(qk_ptr, qk_row_stride, n_h, hd, rope_dim, cos, sin, IS_NEOX_STYLE)
    return None


for name, function, digest in (
    ("compute_slot_mapping._compute_slot_mapping_kernel", slot_mapping, "293575a6d19a1cb5"),
    ("rope._triton_rope", rotate, "b970e49614f5ebd1"),
    ("rope._triton_rope_siso", rotate_one, "024ad0bb663eea2c"),
):
    references.register(f"{_MODULE}.{name}", function, digest)
