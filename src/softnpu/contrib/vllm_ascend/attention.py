"""Attention of `_C_ascend`: what torch_npu has under the same name."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["OPERATORS"]


def npu_lightning_indexer(query: Any, key: Any, weights: Any, **rest: Any) -> tuple[Any, Any]:
    """torch_npu's operator."""
    return torch.ops.npu.npu_lightning_indexer(query, key, weights, **rest)


def npu_sparse_flash_attention(
    query: Any,
    key: Any,
    value: Any,
    sparse_indices: Any,
    scale_value: float,
    attention_mode: int = 2,
    **rest: Any,
) -> tuple[Any, Any, Any]:
    """torch_npu's operator; mode 2, multi-head latent attention absorbed, by default."""
    return torch.ops.npu.npu_sparse_flash_attention(
        query, key, value, sparse_indices, scale_value, attention_mode=attention_mode, **rest
    )


def npu_lightning_indexer_quant(
    query: Any,
    key: Any,
    weights: Any,
    query_dequant_scale: Any,
    key_dequant_scale: Any,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    **rest: Any,
) -> Any:
    """torch_npu's npu_quant_lightning_indexer."""
    return torch.ops.npu.npu_quant_lightning_indexer(
        query,
        key,
        weights,
        query_dequant_scale,
        key_dequant_scale,
        query_quant_mode,
        key_quant_mode,
        **rest,
    )


def npu_kv_quant_sparse_flash_attention(
    query: Any,
    key: Any,
    value: Any,
    sparse_indices: Any,
    scale_value: float,
    key_quant_mode: int = 1,
    value_quant_mode: int = 1,
    attention_mode: int = 2,
    return_softmax_lse: bool = False,
    **rest: Any,
) -> tuple[Any, Any, Any]:
    """torch_npu's operator, which does not return the maxima and sums of the scores."""
    if return_softmax_lse:
        raise NotImplementedError(
            "_C_ascend::npu_kv_quant_sparse_flash_attention: argument 'return_softmax_lse' must be False"
        )
    out = torch.ops.npu.npu_kv_quant_sparse_flash_attention(
        query,
        key,
        value,
        sparse_indices,
        scale_value,
        key_quant_mode,
        value_quant_mode,
        attention_mode=attention_mode,
        **rest,
    )
    return out, out.new_empty(0, dtype=torch.float32), out.new_empty(0, dtype=torch.float32)


def npu_recurrent_gated_delta_rule(
    query: Any, key: Any, value: Any, state: Any, **rest: Any
) -> Any:
    """torch_npu's operator."""
    return torch.ops.npu.npu_recurrent_gated_delta_rule(query, key, value, state, **rest)


_LARGEST = (1 << 63) - 1
OPERATORS = {
    "npu_lightning_indexer(Tensor query, Tensor key, Tensor weights, *, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    'Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", '
    f"int sparse_count=2048, int sparse_mode=3, int pre_tokens={_LARGEST}, "
    f"int next_tokens={_LARGEST}, bool return_value=False) -> "
    "(Tensor sparse_indices, Tensor sparse_values)": npu_lightning_indexer,
    "npu_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, "
    "float scale_value, *, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    'int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", '
    f"int sparse_mode=3, int pre_tokens={_LARGEST}, int next_tokens={_LARGEST}, "
    "int attention_mode=2, bool return_softmax_lse=False) -> "
    "(Tensor attention_out, Tensor softmax_max, Tensor softmax_sum)": npu_sparse_flash_attention,
    "npu_lightning_indexer_quant(Tensor query, Tensor key, Tensor weights, "
    "Tensor query_dequant_scale, Tensor key_dequant_scale, *, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    "Tensor? block_table=None, int query_quant_mode=0, int key_quant_mode=0, "
    'str layout_query="BSND", str layout_key="BSND", int sparse_count=2048, int sparse_mode=3) '
    "-> Tensor": npu_lightning_indexer_quant,
    "npu_kv_quant_sparse_flash_attention(Tensor query, Tensor key, Tensor value, "
    "Tensor sparse_indices, float scale_value, *, int key_quant_mode=1, int value_quant_mode=1, "
    "Tensor? key_dequant_scale=None, Tensor? value_dequant_scale=None, "
    "Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None, int sparse_block_size=1, "
    'str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3, '
    f"int pre_tokens={_LARGEST}, int next_tokens={_LARGEST}, int attention_mode=2, "
    "int quant_scale_repo_mode=1, int tile_size=128, int rope_head_dim=64, "
    "bool return_softmax_lse=False) -> "
    "(Tensor attention_out, Tensor softmax_max, Tensor softmax_sum)": (
        npu_kv_quant_sparse_flash_attention
    ),
    "npu_recurrent_gated_delta_rule(Tensor query, Tensor key, Tensor value, Tensor(a!) state, *, "
    "Tensor? beta=None, float? scale=None, Tensor? actual_seq_lengths=None, "
    "Tensor? ssm_state_indices=None, Tensor? num_accepted_tokens=None, Tensor? g=None, "
    "Tensor? gk=None) -> Tensor": npu_recurrent_gated_delta_rule,
}
