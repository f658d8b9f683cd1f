"""Attention of `_C_ascend`: what torch_npu has under the same name, and products of multi-head latent attention."""

from __future__ import annotations

from typing import Any

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide

__all__ = ["OPERATORS"]


@ascend_op(
    "batch_matmul_transpose(Tensor tensor_a, Tensor tensor_b, Tensor tensor_c, "
    "str? format_mode=None, str? quant_mode=None) -> ()",
    product=True,
)
def batch_matmul_transpose(tensor_a, tensor_b, tensor_c, format_mode):
    """c[m, h] = a[m, h] b[h], for a (M, H, K), b (H, K, N) or NZ (H, N / 16, K, 16), c of M * H * N elements.

    c is written, though the schema does not say so. The quantization has no effect on half precision.
    """
    if format_mode == "NZ":
        tensor_b = tensor_b.transpose(1, 2).flatten(2)
    product = wide(tensor_a).transpose(0, 1) @ wide(tensor_b)
    tensor_c.view(product.transpose(0, 1).shape).copy_(product.transpose(0, 1))


@batch_matmul_transpose.meta
def _():
    return None


@batch_matmul_transpose.check
def _(tensor_a, tensor_b, tensor_c, format_mode, quant_mode):
    must.choice("format_mode", format_mode, (None, "ND", "NZ"))
    modes = (None, "per_channel_symm", "per_channel_asymm", "per_token_symm")
    must.choice("quant_mode", quant_mode, modes)
    must.dtype("tensor_a", tensor_a, torch.float16, torch.bfloat16)
    must.ndim("tensor_a", tensor_a, 3)
    rows, heads, depth = tensor_a.shape
    must.hold(1 <= rows <= 1024, "tensor_a", "of 1 to 1024 rows", rows)
    must.same_dtype("tensor_b", tensor_b, "tensor_a", tensor_a)
    must.same_dtype("tensor_c", tensor_c, "tensor_a", tensor_a)
    nz = format_mode == "NZ"
    must.shape("tensor_b", tensor_b, (heads, None, depth, 16) if nz else (heads, depth, None))
    width = tensor_b.shape[1] * 16 if nz else tensor_b.shape[2]
    must.hold(
        tensor_c.numel() == rows * heads * width,
        "tensor_c",
        f"of {rows} x {heads} x {width} elements",
        tuple(tensor_c.shape),
    )


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
