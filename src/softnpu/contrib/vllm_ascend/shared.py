"""The indexer of `_C_ascend` over compressed keys (DeepSeek-V4)."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels.two_caches import metadata
from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _indexer, _sparse

__all__ = ["npu_vllm_quant_lightning_indexer", "npu_vllm_quant_lightning_indexer_metadata"]

_LARGEST = (1 << 63) - 1


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
