"""Attention over shared keys and values of `_C_ascend` (DeepSeek-V4): a window of tokens, and compressed ones.

The position of a query is that of its token in the whole sequence; compressed token c stands for the tokens from
c * ratio on, and is seen once all of them are. What the card's operators call metadata divides the work among its
cores; here it is a tensor of zeros, and is not read.
"""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.attention import _indexer, _sparse, _sparse_attend

__all__ = [
    "attend",
    "check_attention",
    "metadata",
    "npu_sparse_attn_sharedkv",
    "npu_sparse_attn_sharedkv_metadata",
    "npu_vllm_quant_lightning_indexer",
    "npu_vllm_quant_lightning_indexer_metadata",
]

_LARGEST = (1 << 63) - 1
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


@ascend_op(
    "npu_sparse_attn_sharedkv(Tensor q, *, Tensor? ori_kv=None, Tensor? cmp_kv=None, "
    "Tensor? ori_sparse_indices=None, Tensor? cmp_sparse_indices=None, "
    "Tensor? ori_block_table=None, Tensor? cmp_block_table=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_ori_kv=None, Tensor? cu_seqlens_cmp_kv=None, Tensor? seqused_q=None, "
    "Tensor? seqused_kv=None, Tensor? sinks=None, Tensor? metadata=None, "
    "float softmax_scale=0, int cmp_ratio=0, int ori_mask_mode=4, int cmp_mask_mode=3, "
    'int ori_win_left=128, int ori_win_right=0, str layout_q="BSND", str layout_kv="PA_ND", '
    "bool return_softmax_lse=False) -> (Tensor out, Tensor softmax_lse)",
    product=True,
)
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


@ascend_op(
    "npu_vllm_quant_lightning_indexer(Tensor query, Tensor key, Tensor weights, "
    "Tensor query_dequant_scale, Tensor key_dequant_scale, int query_quant_mode=0, "
    "int key_quant_mode=0, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_key=None, Tensor? block_table=None, Tensor? metadata=None, "
    'str layout_query="BSND", str layout_key="BSND", int sparse_count=2048, '
    f"int sparse_mode=3, int pre_tokens={_LARGEST}, int next_tokens={_LARGEST}, "
    "int cmp_ratio=1, bool return_value=False) -> (Tensor sparse_indices, Tensor sparse_values)",
    product=True,
)
def npu_vllm_quant_lightning_indexer(
    query,
    key,
    weights,
    query_dequant_scale,
    key_dequant_scale,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    block_table,
    layout_query,
    layout_key,
    sparse_count,
    sparse_mode,
    cmp_ratio,
):
    """`npu_quant_lightning_indexer` over compressed keys; the lengths of the keys are those before compression."""
    indices = query.new_full((*query.shape[:-2], 1, sparse_count), -1, dtype=torch.int32)
    rows, shape = _sparse.tokens(query), (-1, weights.shape[-1])
    factors, scales = weights.reshape(shape).float(), query_dequant_scale.reshape(shape).float()
    whole = actual_seq_lengths_key.tolist()
    lengths = actual_seq_lengths_query, [n // cmp_ratio for n in whole]

    def unseen(span, mode, part, column):
        if mode == 0:
            return (column >= span.columns).expand(part.stop - part.start, -1)
        position = whole[span.index] - span.rows + torch.arange(part.start, part.stop)
        return column >= ((position + 1).clamp(min=0) // cmp_ratio).unsqueeze(1)

    for span in _sparse.spans(query, key, layout_query, layout_key, *lengths):
        part = slice(span.start, span.start + span.rows)
        found = _sparse.keys(key, span, layout_key, block_table)[:, 0].float()
        steps = _sparse.keys(key_dequant_scale.unsqueeze(-1), span, layout_key, block_table)
        _indexer.best(
            rows[part].float() * scales[part].unsqueeze(-1), factors[part],
            found * steps[:, 0].float(), span, sparse_mode, sparse_count,
            indices.view(-1, sparse_count)[part], unseen=unseen,
        )  # fmt: skip
    return indices, query.new_empty(0, dtype=torch.float32)


@npu_vllm_quant_lightning_indexer.meta
def _(query, sparse_count):
    indices = query.new_empty((*query.shape[:-2], 1, sparse_count), dtype=torch.int32)
    return indices, query.new_empty(0, dtype=torch.float32)


@npu_vllm_quant_lightning_indexer.check
def _(query, key, weights, query_dequant_scale, key_dequant_scale, **rest):
    must.anything(rest["metadata"])  # without effect
    must.choice("layout_query", rest["layout_query"], ("BSND", "TND"))
    must.choice("layout_key", rest["layout_key"], ("PA_BSND",))
    must.dtype("query", query, torch.int8, torch.float8_e4m3fn)
    must.ndim("query", query, 3 if rest["layout_query"] == "TND" else 4)
    must.same_dtype("key", key, "query", query)
    must.shape("key", key, (None, None, 1, query.shape[-1]))
    halves = (torch.float16, torch.float32)
    for name, tensor in (
        ("weights", weights),
        ("query_dequant_scale", query_dequant_scale),
    ):
        must.dtype(name, tensor, *halves)
        must.shape(name, tensor, tuple(query.shape[:-1]))
    must.dtype("key_dequant_scale", key_dequant_scale, *halves)
    must.shape("key_dequant_scale", key_dequant_scale, tuple(key.shape[:-1]))
    for name in ("query_quant_mode", "key_quant_mode"):
        must.choice(name, rest[name], (0,))
    must.present("actual_seq_lengths_key", rest["actual_seq_lengths_key"], "always")
    must.present("block_table", rest["block_table"], "with layout_key 'PA_BSND'")
    if rest["layout_query"] == "TND":
        lengths = rest["actual_seq_lengths_query"]
        must.present("actual_seq_lengths_query", lengths, "with layout_query 'TND'")
    count, ratio = rest["sparse_count"], rest["cmp_ratio"]
    must.hold(1 <= count <= 2048, "sparse_count", "from 1 to 2048", count)
    must.choice("cmp_ratio", ratio, tuple(1 << n for n in range(8)))
    must.choice("sparse_mode", rest["sparse_mode"], (0, 3))
    must.unset("return_value", rest["return_value"], False)
    _sparse.check_tokens_limits(rest["pre_tokens"], rest["next_tokens"])


def metadata(*tensors, device):
    given = next((t.device for t in tensors if t is not None), torch.device(device))
    return torch.zeros(METADATA, dtype=torch.int32, device=given)


@ascend_op(
    "npu_sparse_attn_sharedkv_metadata(int num_heads_q, int num_heads_kv, int head_dim, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_ori_kv=None, "
    "Tensor? cu_seqlens_cmp_kv=None, Tensor? seqused_q=None, Tensor? seqused_kv=None, "
    "int batch_size=0, int max_seqlen_q=0, int max_seqlen_kv=0, int ori_topk=0, "
    "int cmp_topk=0, int cmp_ratio=4, int ori_mask_mode=4, int cmp_mask_mode=3, "
    'int ori_win_left=128, int ori_win_right=0, str layout_q="BSND", str layout_kv="PA_ND", '
    'bool has_ori_kv=True, bool has_cmp_kv=True, str device="npu") -> Tensor metadata',
    key="CompositeExplicitAutograd",
    direct=True,
)
def npu_sparse_attn_sharedkv_metadata(
    cu_seqlens_q, cu_seqlens_ori_kv, cu_seqlens_cmp_kv, seqused_q, seqused_kv, device
):
    """How the card's cores divide the work of `npu_sparse_attn_sharedkv`: zeros here."""
    return metadata(
        cu_seqlens_q, cu_seqlens_ori_kv, cu_seqlens_cmp_kv, seqused_q, seqused_kv, device=device
    )


@ascend_op(
    "npu_vllm_quant_lightning_indexer_metadata(int num_heads_q, int num_heads_k, int head_dim, "
    "int query_quant_mode, int key_quant_mode, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_key=None, int batch_size=0, int max_seqlen_q=0, "
    'int max_seqlen_k=0, str layout_query="BSND", str layout_key="BSND", '
    f"int sparse_count=2048, int sparse_mode=3, int pre_tokens={_LARGEST}, "
    f'int next_tokens={_LARGEST}, int cmp_ratio=1, str device="npu") -> Tensor metadata',
    key="CompositeExplicitAutograd",
    direct=True,
)
def npu_vllm_quant_lightning_indexer_metadata(
    actual_seq_lengths_query, actual_seq_lengths_key, device
):
    """The same for `npu_vllm_quant_lightning_indexer`."""
    return metadata(actual_seq_lengths_query, actual_seq_lengths_key, device=device)
