"""KV caches and memory of `_C_ascend`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._shared._pages import bits

__all__ = ["HOST_OPERATORS", "OPERATORS"]


def transpose_kv_cache_by_block(
    kCache: list[Any],
    vCache: list[Any],
    blockIDs: Any,
    blockSize: int,
    headNum: int,
    headDim: int,
    splitNum: int,
    layerNum: int,
) -> None:
    """Blocks that arrived as splitNum parts, one after the other, get the parts side by side in each token."""
    if len(kCache) != layerNum or len(vCache) != layerNum:
        raise ValueError(
            f"transpose_kv_cache_by_block: kCache and vCache must have layerNum = {layerNum} tensors, "
            f"received {len(kCache)} and {len(vCache)}"
        )
    index = blockIDs.long()
    for cache in [*kCache, *vCache]:
        blocks = cache[index]
        parts = blocks.reshape(index.numel(), splitNum, blockSize, -1)
        cache[index] = parts.transpose(1, 2).reshape(blocks.shape)


def swap_blocks(x: Any, y: Any, z: Any) -> None:
    """Copies block z[i, 0] of x to block z[i, 1] of y, for each i."""
    if z.device.type != "meta":
        for source, target in z.tolist():
            y[target].copy_(x[source])


def swap_blocks_batch(x: Any, y: Any, z: Any, direction: int) -> None:
    """Copies z[i] bytes from the address x[i] to the address y[i]; a device's memory is memory of the host."""
    if direction not in (0, 1, 2):
        raise ValueError(
            f"swap_blocks_batch: direction must be 0 (host to device), 1 (device to host) or 2, "
            f"received {direction}"
        )
    for source, target, size in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
        ctypes.memmove(target, source, size)


@ascend_op("npu_scatter_nd_update_v2(Tensor(a!) var, Tensor indices, Tensor update) -> ()")
def npu_scatter_nd_update_v2(var, indices, update):
    """var[indices[i, 0], ..., indices[i, K - 1]] = update[i]; what lies outside of var is left out."""
    depth = indices.shape[-1]
    sizes = torch.tensor(var.shape[:depth])
    rows = indices.reshape(-1, depth).long()
    inside = ((rows >= 0) & (rows < sizes)).all(-1)
    values = bits(update).reshape(rows.shape[0], *var.shape[depth:])
    bits(var).index_put_(tuple(rows[inside].unbind(-1)), values[inside])


@npu_scatter_nd_update_v2.meta
def _():
    return None


@npu_scatter_nd_update_v2.check
def _(var, indices, update):
    must.dtype("indices", indices, torch.int32, torch.int64)
    must.same_dtype("update", update, "var", var)
    fits = indices.dim() >= 1 and 1 <= indices.shape[-1] <= var.dim()
    expected = f"of a last dimension from 1 to {var.dim()}, the dimensions of 'var'"
    must.hold(fits, "indices", expected, tuple(indices.shape))
    elements = indices.shape[:-1].numel() * var.shape[indices.shape[-1] :].numel()
    expected = f"of {elements} elements, a slice of 'var' for each index"
    must.hold(update.numel() == elements, "update", expected, tuple(update.shape))


@ascend_op(
    "store_kv_block_metadata(Tensor slot_mapping_npu, Tensor group_len, Tensor group_key_idx, "
    "Tensor group_key_cache_idx, int block_size=0) -> ()"
)
def store_kv_block_metadata(
    slot_mapping_npu, group_len, group_key_idx, group_key_cache_idx, block_size
):
    """Runs of consecutive slots within a block: their lengths, first tokens and first slots; the rest is 0.

    The last three tensors are written, though the schema does not say so. A negative slot belongs to no run.
    """
    slots = slot_mapping_npu.reshape(-1).tolist()
    runs: list[list[int]] = []
    before = None
    for token, slot in enumerate(slots):
        if slot < 0:
            before = None
            continue
        if before is not None and slot == before + 1 and slot // block_size == before // block_size:
            runs[-1][0] += 1
        else:
            runs.append([1, token, slot])
        before = slot
    for place, target in enumerate((group_len, group_key_idx, group_key_cache_idx)):
        fits = len(runs) <= target.shape[0]
        must.hold(fits, _GROUPS[place], f"of at least {len(runs)} elements", target.shape[0])
        target.zero_()
        target[: len(runs)] = torch.tensor([run[place] for run in runs], dtype=torch.int32)


_GROUPS = ("group_len", "group_key_idx", "group_key_cache_idx")


@store_kv_block_metadata.meta
def _():
    return None


@store_kv_block_metadata.check
def _(slot_mapping_npu, group_len, group_key_idx, group_key_cache_idx, block_size):
    must.dtype("slot_mapping_npu", slot_mapping_npu, torch.int32)
    must.hold(block_size > 0, "block_size", "positive", block_size)
    groups = (group_len, group_key_idx, group_key_cache_idx)
    for name, tensor in zip(_GROUPS, groups, strict=True):
        must.dtype(name, tensor, torch.int32)
        must.ndim(name, tensor, 1)


@ascend_op(
    "store_kv_block(Tensor key_in, Tensor key_cache_in, Tensor group_len, Tensor group_key_idx, "
    "Tensor group_key_cache_idx, int block_size=0) -> ()"
)
def store_kv_block(key_in, key_cache_in, group_len, group_key_idx, group_key_cache_idx):
    """Copies the runs of `store_kv_block_metadata` from key_in (tokens, ...) to the slots of the cache, which is written.

    The cache is (blocks, block_size, ...); a run of length 0 or with a negative index is left out.
    """
    cache = bits(key_cache_in).view(key_cache_in.shape[:2].numel(), -1)
    rows = bits(key_in).reshape(-1, cache.shape[1])
    groups = zip(
        group_len.tolist(), group_key_idx.tolist(), group_key_cache_idx.tolist(), strict=True
    )
    for length, token, slot in groups:
        if length > 0 and token >= 0 and slot >= 0:
            ends = token + length <= rows.shape[0], slot + length <= cache.shape[0]
            must.hold(ends[0], "group_key_idx", f"within {rows.shape[0]} tokens", token + length)
            must.hold(
                ends[1], "group_key_cache_idx", f"within {cache.shape[0]} slots", slot + length
            )
            cache[slot : slot + length] = rows[token : token + length]


@store_kv_block.meta
def _():
    return None


@store_kv_block.check
def _(key_in, key_cache_in, group_len, group_key_idx, group_key_cache_idx, block_size):
    must.same_dtype("key_in", key_in, "key_cache_in", key_cache_in)
    must.ndim("key_cache_in", key_cache_in, 2, 5)
    must.hold(key_cache_in.is_contiguous(), "key_cache_in", "contiguous", key_cache_in.stride())
    fits = block_size == key_cache_in.shape[1]
    must.hold(fits, "block_size", f"{key_cache_in.shape[1]}, as 'key_cache_in' has it", block_size)
    width = key_cache_in.shape[2:].numel()
    fits = width > 0 and key_in.numel() % width == 0
    must.hold(fits, "key_in", f"of tokens of {width} elements", tuple(key_in.shape))
    for name, tensor in zip(_GROUPS, (group_len, group_key_idx, group_key_cache_idx), strict=True):
        must.dtype(name, tensor, torch.int32)
        must.shape(name, tensor, tuple(group_len.shape))


OPERATORS = {
    "transpose_kv_cache_by_block(Tensor[] kCache, Tensor[] vCache, Tensor blockIDs, "
    "int blockSize, int headNum, int headDim, int splitNum, int layerNum) -> ()": (
        transpose_kv_cache_by_block
    ),
    "swap_blocks(Tensor! x, Tensor! y, Tensor z) -> ()": swap_blocks,
}
#: their arguments are host tensors
HOST_OPERATORS = {
    "swap_blocks_batch(Tensor x, Tensor y, Tensor z, int direction) -> ()": swap_blocks_batch,
}
