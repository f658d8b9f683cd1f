"""Attention over shared keys and values in 8-bit floats of `_C_ascend` (DeepSeek-V4 on Ascend950).

A token of a cache is a row of bytes, as `kv_compress_epilog` writes it with `quant_mode` 2: the rotated elements in
bfloat16, the others in float8_e4m3fn, a scale of 8 bits (e8m0) for each `tile_size` of them. Kernel: vllm-ascend,
csrc/attention/kv_quant_sparse_attn_sharedkv.
"""

from __future__ import annotations

import torch

from softnpu.contrib.kernels import two_caches
from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide

__all__ = ["npu_kv_quant_sparse_attn_sharedkv", "npu_kv_quant_sparse_attn_sharedkv_metadata"]


def decode(rows: torch.Tensor, dtype: torch.dtype, width: int, rope: int, tile: int):
    """Rows of bytes as (rows, width): the elements without rotation first, rounded to the dtype of the queries."""
    data = rows.contiguous().view(torch.uint8)
    plain = width - rope
    turned = data[:, : 2 * rope].contiguous().view(torch.bfloat16)
    values = data[:, 2 * rope : 2 * rope + plain].contiguous().view(torch.float8_e4m3fn).float()
    scales = data[:, 2 * rope + plain : 2 * rope + plain + plain // tile].contiguous()
    factor = scales.view(torch.float8_e8m0fnu).float().repeat_interleave(tile, 1)
    return wide(torch.cat(((values * factor).to(dtype), turned.to(dtype)), 1))


@ascend_op(
    "npu_kv_quant_sparse_attn_sharedkv(Tensor q, int kv_quant_mode, Tensor? ori_kv=None, "
    "Tensor? cmp_kv=None, Tensor? ori_sparse_indices=None, Tensor? cmp_sparse_indices=None, "
    "Tensor? ori_block_table=None, Tensor? cmp_block_table=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_ori_kv=None, Tensor? cu_seqlens_cmp_kv=None, Tensor? seqused_q=None, "
    "Tensor? seqused_kv=None, Tensor? sinks=None, Tensor? metadata=None, int tile_size=0, "
    "int rope_head_dim=0, float softmax_scale=0.0, int cmp_ratio=0, int ori_mask_mode=4, "
    "int cmp_mask_mode=3, int ori_win_left=127, int ori_win_right=0, str layout_q='BSND', "
    "str layout_kv='PA_ND', bool return_softmax_lse=False) -> (Tensor out, Tensor softmax_lse)",
    product=True,
)
def npu_kv_quant_sparse_attn_sharedkv(
    q,
    ori_kv,
    cmp_kv,
    cmp_sparse_indices,
    ori_block_table,
    cmp_block_table,
    cu_seqlens_q,
    seqused_kv,
    sinks,
    tile_size,
    rope_head_dim,
    softmax_scale,
    cmp_ratio,
    ori_win_left,
    ori_win_right,
    layout_q,
    layout_kv,
):
    """`npu_sparse_attn_sharedkv` over caches (blocks, block, 1, bytes) of float8_e4m3fn."""
    out = two_caches.attend(
        q, (ori_kv, cmp_kv), (ori_block_table, cmp_block_table), cmp_sparse_indices, cu_seqlens_q,
        seqused_kv, sinks, softmax_scale, cmp_ratio, (ori_win_left, ori_win_right),
        (layout_q, layout_kv),
        lambda rows: decode(rows, q.dtype, q.shape[-1], rope_head_dim, tile_size),
    )  # fmt: skip
    return out, q.new_empty(0, dtype=torch.float32)


@npu_kv_quant_sparse_attn_sharedkv.meta
def _(q):
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(0, dtype=torch.float32)


@npu_kv_quant_sparse_attn_sharedkv.check
def _(q, kv_quant_mode, ori_kv, cmp_kv, tile_size, rope_head_dim, cmp_ratio, **rest):
    must.anything(rest["ori_sparse_indices"])  # without effect
    must.choice("kv_quant_mode", kv_quant_mode, (1,))
    must.dtype("q", q, torch.bfloat16)
    for name in ("seqused_kv", "sinks", "metadata"):
        must.present(name, rest[name], "always")
    caches = two_caches.check_attention(q, ori_kv, cmp_kv, cmp_ratio, ("PA_ND",), rest)
    width = q.shape[-1]
    must.hold(0 < rope_head_dim < width, "rope_head_dim", f"from 1 to {width - 1}", rope_head_dim)
    plain = width - rope_head_dim
    fits = tile_size > 0 and plain % tile_size == 0
    must.hold(fits, "tile_size", f"a divisor of {plain}", tile_size)
    least = 2 * rope_head_dim + plain + plain // tile_size
    batch = rest["seqused_kv"].shape[0]
    for name, cache in caches:
        must.dtype(f"{name}_kv", cache, torch.float8_e4m3fn)
        must.shape(f"{name}_kv", cache, (None, None, 1, None))
        must.hold(cache.shape[-1] >= least, f"{name}_kv", f"of at least {least} bytes a token",
                  cache.shape[-1])  # fmt: skip
        block = cache.shape[1]
        must.hold(block % 16 == 0 and 0 < block <= 1024, f"{name}_kv",
                  "of blocks of a multiple of 16 tokens up to 1024", block)  # fmt: skip
        must.shape(f"{name}_block_table", rest[f"{name}_block_table"], (batch, None))


@ascend_op(
    "npu_kv_quant_sparse_attn_sharedkv_metadata(int num_heads_q, int num_heads_kv, int head_dim, "
    "int kv_quant_mode, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_ori_kv=None, "
    "Tensor? cu_seqlens_cmp_kv=None, Tensor? seqused_q=None, Tensor? seqused_kv=None, "
    "int batch_size=0, int max_seqlen_q=0, int max_seqlen_kv=0, int ori_topk=0, int cmp_topk=0, "
    "int tile_size=0, int rope_head_dim=0, int cmp_ratio=-1, int ori_mask_mode=4, "
    "int cmp_mask_mode=3, int ori_win_left=127, int ori_win_right=0, str layout_q='BSND', "
    "str layout_kv='PA_ND', bool has_ori_kv=True, bool has_cmp_kv=True, str device='npu') "
    "-> Tensor",
    key="CompositeExplicitAutograd",
    direct=True,
)
def npu_kv_quant_sparse_attn_sharedkv_metadata(
    cu_seqlens_q, cu_seqlens_ori_kv, cu_seqlens_cmp_kv, seqused_q, seqused_kv, device
):
    """How the card's cores divide the work of `npu_kv_quant_sparse_attn_sharedkv`: zeros here."""
    tensors = cu_seqlens_q, cu_seqlens_ori_kv, cu_seqlens_cmp_kv, seqused_q, seqused_kv
    return two_caches.metadata(*tensors, device=device)
