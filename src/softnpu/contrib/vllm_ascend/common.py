"""The operators of `_C_ascend` that other libraries have too: their schemas here."""

from __future__ import annotations

from softnpu.contrib.kernels import blocks, compressor, lora, products, rope, two_caches
from softnpu.contrib.vllm_ascend._define import ascend_op, define

__all__: list[str] = []

define(lora.OPERATORS)

compressor.compressor.register(
    ascend_op(
        "compressor(Tensor x, Tensor wkv, Tensor wgate, Tensor(a!) state_cache, Tensor ape, "
        "Tensor norm_weight, Tensor rope_sin, Tensor rope_cos, Tensor? state_block_table, "
        "Tensor? cu_seqlens, Tensor? seqused, Tensor? start_pos, int rope_head_dim, int cmp_ratio, "
        "int coff, float norm_eps, int rotary_mode, int cache_mode) -> Tensor",
        product=True,
    )
)
rope.inplace_partial_rotary_mul.register(
    ascend_op(
        "inplace_partial_rotary_mul(Tensor(a!) x, Tensor r1, Tensor r2, str rotary_mode, "
        "int[] partial_slice) -> ()"
    )
)
blocks.npu_sparse_attention_score.register(
    ascend_op(
        "npu_sparse_attention_score(Tensor query, Tensor key, Tensor value, Tensor select_idx, "
        "Tensor block_table, *, Tensor? select_num_idx=None, Tensor? q_dequant_scale=None, "
        "Tensor? k_dequant_scale=None, Tensor? v_dequant_scale=None, "
        "Tensor? actual_seq_lengths=None, Tensor? actual_seq_lengths_kv=None, "
        'str q_input_layout="TND", str kv_input_layout="BNSD", int num_key_value_heads=1, '
        "float scale_value=1.0, int block_size=128, int top_k=16, int inner_precise=0) -> Tensor",
        product=True,
    )
)
products.batch_matmul_transpose.register(
    ascend_op(
        "batch_matmul_transpose(Tensor tensor_a, Tensor tensor_b, Tensor tensor_c, "
        "str? format_mode=None, str? quant_mode=None) -> ()",
        product=True,
    )
)
two_caches.npu_sparse_attn_sharedkv.register(
    ascend_op(
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
)
two_caches.npu_sparse_attn_sharedkv_metadata.register(
    ascend_op(
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
)
