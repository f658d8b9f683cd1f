"""Attention of sgl-kernel-npu: multi-head latent, indexed, over chosen blocks, and over two caches."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels import blocks, mla, products, two_caches
from softnpu.contrib.kernels.compressor import compressor as compressed
from softnpu.contrib.sgl_kernel_npu._define import sgl_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.attention.npu_lightning_indexer import npu_lightning_indexer as indexer

__all__ = ["compressor", "lightning_indexer", "mla_preprocess"]

products.batch_matmul_transpose.register(
    sgl_op(
        "batch_matmul_transpose(Tensor tensor_a, Tensor tensor_b, Tensor(a!) tensor_c, "
        "str? format_mode=None, str? quant_mode=None) -> ()",
        product=True,
    )
)

blocks.npu_sparse_attention_score.register(
    sgl_op(
        "npu_sparse_attention_score(Tensor query, Tensor key, Tensor value, Tensor select_idx, "
        "Tensor block_table, Tensor? select_num_idx=None, Tensor? q_dequant_scale=None, "
        "Tensor? k_dequant_scale=None, Tensor? v_dequant_scale=None, "
        "Tensor? actual_seq_lengths=None, Tensor? actual_seq_lengths_kv=None, "
        "int num_key_value_heads=1, float scale_value=1.0, int block_size=128, "
        "int top_k=16, int inner_precise=0) -> Tensor",
        product=True,
    )
)

two_caches.npu_sparse_attn_sharedkv.register(
    sgl_op(
        "sparse_attn_sharedkv(Tensor q, *, Tensor? ori_kv=None, Tensor? cmp_kv=None, "
        "Tensor? ori_sparse_indices=None, Tensor? cmp_sparse_indices=None, "
        "Tensor? ori_block_table=None, Tensor? cmp_block_table=None, "
        "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_ori_kv=None, "
        "Tensor? cu_seqlens_cmp_kv=None, Tensor? seqused_q=None, Tensor? seqused_kv=None, "
        "Tensor? sinks=None, Tensor? metadata=None, float softmax_scale=0, int cmp_ratio=0, "
        "int ori_mask_mode=4, int cmp_mask_mode=3, int ori_win_left=128, int ori_win_right=0, "
        'str layout_q="BSND", str layout_kv="PA_ND", '
        "bool return_softmax_lse=False) -> (Tensor, Tensor)",
        product=True,
    )
)


@sgl_op(
    "sparse_attn_sharedkv_metadata_host(int num_heads_q, int num_heads_kv, int head_dim, "
    "str layout_q, str layout_kv, Tensor? cu_seqlens_q=None, Tensor? seqused_kv=None, "
    "int batch_size=0, int cmp_topk=0, int cmp_ratio=-1, int ori_mask_mode=4, "
    "int cmp_mask_mode=3, int ori_win_left=127, int ori_win_right=0, bool has_ori_kv=True, "
    "bool has_cmp_kv=True) -> Tensor",
    key="CompositeExplicitAutograd",
    direct=True,
)
def sparse_attn_sharedkv_metadata_host():
    """How the card's cores divide the work of `sparse_attn_sharedkv`, from lengths on the host: zeros on the device."""
    return two_caches.metadata(device="npu")


@sparse_attn_sharedkv_metadata_host.check
def _(cu_seqlens_q, seqused_kv):
    for name, tensor in (("cu_seqlens_q", cu_seqlens_q), ("seqused_kv", seqused_kv)):
        must.dtype(name, tensor, torch.int32)
        on_host = tensor is None or tensor.device.type == "cpu"
        must.hold(on_host, name, "on the host", None if tensor is None else tensor.device)


@sgl_op(
    "compressor(Tensor x, Tensor wkv, Tensor wgate, Tensor! state_cache, Tensor ape, "
    "Tensor norm_weight, Tensor rope_sin, Tensor rope_cos, Tensor? state_block_table=None, "
    "Tensor? cu_seqlens=None, Tensor? seqused=None, Tensor? start_pos=None, "
    "int rope_head_dim=64, int cmp_ratio=4, int coff=1, float norm_eps=1e-6, "
    "int rotary_mode=1, int cache_mode=1, int state_cache_stride_dim0=0) -> Tensor",
    product=True,
)
def compressor(state_cache_stride_dim0, **rest):
    """`_C_ascend::compressor` of vllm-ascend: one cached token for each group of tokens."""
    must.anything(state_cache_stride_dim0, rest.pop("rotary_mode"), rest.pop("cache_mode"))
    return compressed.kernel(**rest)


compressor.meta(compressed.parts["meta"])


@compressor.check
def _(state_cache_stride_dim0, state_cache, **rest):
    stride = state_cache.stride(0) if state_cache.dim() else 0
    must.choice("state_cache_stride_dim0", state_cache_stride_dim0, (0, stride))
    compressed.parts["check"](state_cache=state_cache, **rest)


@sgl_op(
    "lightning_indexer(Tensor query, Tensor key, Tensor weights, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    "Tensor? block_table=None, str? layout_query=None, str? layout_key=None, "
    "int? sparse_count=None, int? sparse_mode=None) -> Tensor",
    product=True,
)
def lightning_indexer(query, key, weights, **rest):
    """The indices of `npu_lightning_indexer`; None stands for the default there."""
    return indexer.as_function("body")(query, key, weights, **_chosen(rest))[0]


def _chosen(rest):
    return {name: value for name, value in rest.items() if value is not None}


@lightning_indexer.meta
def _(query, key, weights, **rest):
    return indexer.as_function("shapes")(query, key, weights, **_chosen(rest))[0]


@lightning_indexer.check
def _(query, key, weights, **rest):
    indexer.as_function("check")(query, key, weights, **_chosen(rest))


@sgl_op(
    "mla_preprocess(Tensor hiddenState, Tensor gamma0, Tensor beta0, Tensor wdqkv, "
    "Tensor descale0, Tensor gamma1, Tensor beta1, Tensor wuq, Tensor descale1, Tensor gamma2, "
    "Tensor cos, Tensor sin, Tensor wuk, Tensor kv_cache, Tensor kv_cache_rope, "
    "Tensor slotmapping, Tensor quant_scale0, Tensor quant_offset0, Tensor bias0, "
    "Tensor quant_scale1, Tensor quant_offset1, Tensor bias1, *, Tensor? ctkv_scale=None, "
    "Tensor? q_nope_scale=None, str? cache_mode=None, str? quant_mode=None, "
    "Tensor(a!) q_out0, Tensor(b!) kv_cache_out0, Tensor(c!) q_out1, Tensor(d!) kv_cache_out1) "
    "-> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!))",
    product=True,
)
def mla_preprocess(hiddenState, beta1, gamma1, wuk, q_nope_scale, **rest):
    """Queries and cache entries of multi-head latent attention, of hidden states that are normalized already.

    The kernel does not read `gamma0` and `beta0`, and of `beta1` as many elements as `gamma1` has. The epsilon of the
    norms is 1e-6. Sizes follow from the tensors. `q_nope_scale` multiplies the queries, where ATB's operator divides.
    """
    for name in ("gamma0", "beta0", "kv_cache", "kv_cache_rope"):
        rest.pop(name)  # not read; of the caches the outputs are written
    bias = beta1.reshape(-1)[: gamma1.shape[0]]
    if q_nope_scale is not None:  # this kernel multiplies by it
        q_nope_scale = wide(q_nope_scale).reciprocal()
    mla.preprocess(
        hiddenState,
        hiddenState.dtype,
        gamma1=gamma1,
        beta1=bias,
        wuk=_matrices(wuk),
        q_nope_scale=q_nope_scale,
        **rest,
    )
    return tuple(rest[n] for n in ("q_out0", "kv_cache_out0", "q_out1", "kv_cache_out1"))


def _matrices(wuk):
    """(heads, K, N), or NZ (heads, N / 16, K, 16) of it."""
    return wuk if wuk.dim() == 3 else wuk.transpose(1, 2).flatten(2)


@mla_preprocess.meta
def _(q_out0, kv_cache_out0, q_out1, kv_cache_out1):
    return q_out0, kv_cache_out0, q_out1, kv_cache_out1


@mla_preprocess.check
def _(hiddenState, gamma0, beta0, gamma1, beta1, wuk, cache_mode, quant_mode, **rest):
    must.anything(gamma0, beta0)
    must.choice("cache_mode", cache_mode, ("krope_ctkv", mla.INT8_NZ, mla.NZ, None))
    must.choice("quant_mode", quant_mode, (mla.STATIC,))  # there is no kernel of the other mode
    if hiddenState.dtype == torch.float16:  # nor of the others in float16
        must.choice("cache_mode", cache_mode, ("krope_ctkv", None))
    must.ndim("gamma1", gamma1, 1)
    fits = beta1.numel() >= gamma1.shape[0]
    must.hold(fits, "beta1", f"of at least {gamma1.shape[0]} elements", tuple(beta1.shape))
    must.ndim("wuk", wuk, 3, 4)
    mla.check_preprocess(
        hiddenState=hiddenState,
        gamma1=gamma1,
        beta1=beta1,
        wuk=_matrices(wuk),
        cache_mode=cache_mode,
        quant_mode=quant_mode,
        **rest,
    )
