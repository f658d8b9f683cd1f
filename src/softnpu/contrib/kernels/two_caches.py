"""Attention over shared keys and values (DeepSeek-V4): a window of tokens, and compressed ones.

The position of a query is that of its token in the whole sequence; compressed token c stands for the tokens from
c * ratio on, and is seen once all of them are. What the card's operators call metadata divides the work among its
cores; here it is a tensor of zeros, and is not read.
"""

from __future__ import annotations

import torch

from softnpu.contrib.kernels._definition import Definition
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.attention import _sparse, _sparse_attend

__all__ = [
    "attend",
    "check_attention",
    "metadata",
    "npu_sparse_attn_sharedkv",
    "npu_sparse_attn_sharedkv_metadata",
]

#: elements of a metadata tensor
METADATA = 1024
_WINDOW, _CAUSAL = 4, 3


def _pages(cache, table, index, columns, layout):
    """The tokens (columns, D) of a sequence; pages outside the window may be anything, but inside the cache."""
    if layout == "BSND":
        return cache[index, :columns, 0]
    block = cache.shape[1]
    ids = table[index, : -(-columns // block)].long().clamp(0, cache.shape[0] - 1)
    return cache[ids, :, 0].flatten(0, 1)[:columns]


@Definition
def npu_sparse_attn_sharedkv(
    q,
    ori_kv,
    cmp_kv,
    cmp_sparse_indices,
    ori_block_table,
    cmp_block_table,
    cu_seqlens_q,
    seqused_kv,
    sinks,
    softmax_scale,
    cmp_ratio,
    ori_win_left,
    ori_win_right,
    layout_q,
    layout_kv,
):
    r"""softmax(Q K^T scale) K over the window of each query and the compressed tokens, all or the chosen ones.

    q (B, S, N, D) or (T, N, D); caches (blocks, block, 1, D), or (B, S, 1, D) in BSND. `sinks` (N) is one more score
    of each head that has no value.
    """
    tables = ori_block_table, cmp_block_table
    window = ori_win_left, ori_win_right
    out = attend(
        q, (ori_kv, cmp_kv), tables, cmp_sparse_indices, cu_seqlens_q, seqused_kv, sinks,
        softmax_scale, cmp_ratio, window, (layout_q, layout_kv), wide,
    )  # fmt: skip
    return out, q.new_empty(0, dtype=torch.float32)


def attend(
    q,
    caches,
    tables,
    cmp_sparse_indices,
    cu_seqlens_q,
    seqused_kv,
    sinks,
    softmax_scale,
    cmp_ratio,
    window,
    layouts,
    read,
):
    """The attention over two caches, all tokens and compressed ones; `read` makes values of what a cache holds."""
    (ori_kv, cmp_kv), (ori_block_table, cmp_block_table) = caches, tables
    (ori_win_left, ori_win_right), (layout_q, layout_kv) = window, layouts
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    rows = out.view(-1, *q.shape[-2:])
    queries, chosen = wide(_sparse.tokens(q)), None
    if cmp_sparse_indices is not None:
        chosen = cmp_sparse_indices.reshape(queries.shape[0], -1).long()
    bounds = _bounds(q, cu_seqlens_q, layout_q)
    lengths = seqused_kv.tolist()
    for index, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        length = lengths[index]
        count = 0 if cmp_kv is None else length // cmp_ratio
        key = read(_pages(ori_kv, ori_block_table, index, length, layout_kv))
        if count:
            compressed = read(_pages(cmp_kv, cmp_block_table, index, count, layout_kv))
            key = torch.cat((key, compressed))
        query = queries[start:end]
        own = None if chosen is None else chosen[start:end]
        width = min(length, ori_win_left + ori_win_right + 1)
        width += own.shape[1] if own is not None else count
        for part in _sparse.steps(end - start, width * q.shape[-1]):
            position = length - (end - start) + torch.arange(part.start, part.stop).unsqueeze(1)
            place, unseen = _window(position, length, ori_win_left, ori_win_right)
            if count:
                picked = torch.arange(count) if own is None else own[part]
                picked = picked.expand(len(position), -1)
                beyond = (picked < 0) | (picked >= (position + 1).div(cmp_ratio).floor())
                beyond = beyond | (picked >= count) | (position < 0)
                place = torch.cat((place, length + picked.masked_fill(beyond, 0)), 1)
                unseen = torch.cat((unseen, beyond), 1)
            if not key.shape[0]:
                continue
            found = _sparse_attend.forward(
                query, key, key, part, place, unseen, softmax_scale, sinks
            )[0]
            empty = unseen.all(1).view(-1, 1, 1)
            rows[start + part.start : start + part.stop] = found.masked_fill(empty, 0).to(q.dtype)
    return out


def _bounds(q, cu_seqlens, layout):
    if layout == "TND":
        return cu_seqlens.tolist()
    return list(range(0, q.shape[:2].numel() + 1, q.shape[1]))


def _window(position, length, left, right):
    """(rows, n): the tokens from `left` before to `right` after each position, and which of them are none."""
    place = position + torch.arange(-left, right + 1)
    unseen = (place < 0) | (place >= length) | (position < 0)
    return place.masked_fill(unseen, 0), unseen


@npu_sparse_attn_sharedkv.meta
def _(q):
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(0, dtype=torch.float32)


def check_attention(q, ori_kv, cmp_kv, cmp_ratio, layouts, rest):
    """What is asked of queries, lengths and caches of any dtype; returns the caches, as (name, cache)."""
    must.anything(*(rest[n] for n in ("cu_seqlens_ori_kv", "cu_seqlens_cmp_kv", "seqused_q")))
    must.choice("layout_q", rest["layout_q"], ("BSND", "TND"))
    must.choice("layout_kv", rest["layout_kv"], layouts)
    must.choice("ori_mask_mode", rest["ori_mask_mode"], (_WINDOW,))
    must.choice("cmp_mask_mode", rest["cmp_mask_mode"], (_CAUSAL,))
    must.unset("return_softmax_lse", rest["return_softmax_lse"], False)
    packed = rest["layout_q"] == "TND"
    must.ndim("q", q, 3 if packed else 4)
    for name in ("ori_win_left", "ori_win_right"):
        must.hold(rest[name] >= 0, name, "not negative", rest[name])
    if packed:
        must.present("cu_seqlens_q", rest["cu_seqlens_q"], "with layout_q 'TND'")
    must.present("ori_kv", ori_kv, "always")
    lengths = must.present("seqused_kv", rest["seqused_kv"], "always")
    must.dtype("seqused_kv", lengths, torch.int32)
    must.shape(
        "seqused_kv", lengths, (rest["cu_seqlens_q"].shape[0] - 1 if packed else q.shape[0],)
    )
    caches = [("ori", ori_kv)]
    if cmp_kv is not None:
        must.hold(cmp_ratio > 0, "cmp_ratio", "positive with 'cmp_kv'", cmp_ratio)
        caches.append(("cmp", cmp_kv))
    for name, _ in caches if rest["layout_kv"] == "PA_ND" else ():
        table = rest[f"{name}_block_table"]
        must.present(f"{name}_block_table", table, "with layout_kv 'PA_ND'")
        must.dtype(f"{name}_block_table", table, torch.int32)
        must.ndim(f"{name}_block_table", table, 2)
    must.dtype("cmp_sparse_indices", rest["cmp_sparse_indices"], torch.int32)
    must.shape("cmp_sparse_indices", rest["cmp_sparse_indices"], (*q.shape[:-2], 1, None))
    must.dtype("sinks", rest["sinks"], torch.float32)
    must.shape("sinks", rest["sinks"], (q.shape[-2],))
    return caches


@npu_sparse_attn_sharedkv.check
def _(q, ori_kv, cmp_kv, cmp_ratio, ori_sparse_indices, **rest):
    must.anything(rest["metadata"])  # without effect
    must.unset("ori_sparse_indices", ori_sparse_indices)
    must.dtype("q", q, torch.float16, torch.bfloat16)
    for name, cache in check_attention(q, ori_kv, cmp_kv, cmp_ratio, ("PA_ND", "BSND"), rest):
        must.same_dtype(f"{name}_kv", cache, "q", q)
        must.shape(f"{name}_kv", cache, (None, None, 1, q.shape[-1]))


def metadata(*tensors, device):
    given = next((t.device for t in tensors if t is not None), torch.device(device))
    return torch.zeros(METADATA, dtype=torch.int32, device=given)


@Definition
def npu_sparse_attn_sharedkv_metadata(
    cu_seqlens_q, cu_seqlens_ori_kv, cu_seqlens_cmp_kv, seqused_q, seqused_kv, device
):
    """How the card's cores divide the work of `npu_sparse_attn_sharedkv`: zeros here."""
    return metadata(
        cu_seqlens_q, cu_seqlens_ori_kv, cu_seqlens_cmp_kv, seqused_q, seqused_kv, device=device
    )
