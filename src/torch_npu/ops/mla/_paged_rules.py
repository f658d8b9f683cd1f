"""The constraints of npu_mla_prolog and npu_mla_prolog_v2."""

from __future__ import annotations

import math

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.mla import _prolog
from torch_npu.ops.mla._paged import DR, HCKV, HCQ, NKV, D, Prolog

HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
CACHE_MODES = ("PA_BSND", "PA_NZ")


def check(g: Prolog, *, full_int8: bool) -> None:
    """The documented constraints; `full_int8`: whether the operator takes int8 tokens."""
    family = chips.current().family
    must.hold(
        family in ("A2", "A3"),
        "token_x",
        "on an Atlas A2 or A3 product (others have npu_mla_prolog_v3)",
        family,
        ErrCode.NOT_SUPPORT,
    )
    must.choice("cache_mode", g.cache_mode, CACHE_MODES)
    _dtypes(g, full_int8)
    _shapes(g)
    _scales(g)


def _dtypes(g: Prolog, full_int8: bool) -> None:
    bf16, int8 = torch.bfloat16, torch.int8
    must.dtype("token_x", g.token_x, *((bf16, int8) if full_int8 else (bf16,)))
    full = g.token_x.dtype == int8
    must.dtype("weight_dq", g.weight_dq, g.token_x.dtype)
    must.dtype("weight_dkv_kr", g.weight_dkv_kr, g.token_x.dtype)
    must.dtype("weight_uq_qr", g.weight_uq_qr, *((int8,) if full else (bf16, int8)))
    quantized = g.weight_uq_qr.dtype == int8
    must.dtype("kv_cache", g.kv_cache, *((bf16, int8) if quantized else (bf16,)))
    kr = bf16 if full else g.kv_cache.dtype
    must.dtype("kr_cache", g.kr_cache, kr)
    for name in ("weight_uk", "rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos"):
        must.dtype(name, getattr(g, name), bf16)
    must.dtype("cache_index", g.cache_index, torch.int64)


def _shapes(g: Prolog) -> None:
    must.ndim("token_x", g.token_x, 2, 3)
    tokens = tuple(g.token_x.shape[:-1])
    he = _prolog.check_tokens(g.token_x)
    must.shape("weight_uk", g.weight_uk, (None, D, HCKV))
    heads = g.weight_uk.shape[0]
    must.hold(heads in HEADS, "weight_uk", f"of {must.one_of(HEADS)} heads", heads)
    must.shape("weight_dq", g.weight_dq, (he, HCQ))
    must.shape("weight_uq_qr", g.weight_uq_qr, (HCQ, heads * (D + DR)))
    must.shape("weight_dkv_kr", g.weight_dkv_kr, (he, HCKV + DR))
    must.shape("rmsnorm_gamma_cq", g.rmsnorm_gamma_cq, (HCQ,))
    must.shape("rmsnorm_gamma_ckv", g.rmsnorm_gamma_ckv, (HCKV,))
    must.shape("rope_sin", g.rope_sin, (*tokens, DR))
    must.shape("rope_cos", g.rope_cos, (*tokens, DR))
    must.shape("cache_index", g.cache_index, tokens)
    must.shape("kv_cache", g.kv_cache, (None, None, NKV, HCKV))
    _prolog.check_order(g.cache_mode, kv_cache=g.kv_cache, kr_cache=g.kr_cache)
    blocks, size = g.kv_cache.shape[:2]
    _prolog.check_block(size)
    must.shape("kr_cache", g.kr_cache, (blocks, size, NKV, DR))
    slots = blocks * size
    if must.has_data(g.cache_index) and g.cache_index.numel() and slots:
        most = int(g.cache_index.max())
        must.hold(most < slots, "cache_index", f"below {slots}, the slots of the cache", most)


def _scales(g: Prolog) -> None:
    full = g.token_x.dtype == torch.int8
    quantized = g.weight_uq_qr.dtype == torch.int8
    cache = g.kv_cache.dtype == torch.int8
    heads = g.weight_uk.shape[0]
    count = math.prod(g.token_x.shape[:-1])
    _scale(g, "dequant_scale_x", full, "with int8 'token_x'", (count, 1))
    _scale(g, "dequant_scale_w_dq", full, "with int8 'token_x'", (1, HCQ))
    _scale(g, "dequant_scale_w_dkv_kr", full, "with int8 'token_x'", (1, HCKV + DR))
    up = (1, heads * (D + DR))
    _scale(g, "dequant_scale_w_uq_qr", quantized, "with int8 'weight_uq_qr'", up)
    _scale(g, "quant_scale_ckv", cache, "with int8 'kv_cache'", (1, HCKV))
    _scale(g, "quant_scale_ckr", cache and not full, "with int8 'kr_cache'", (1, DR))
    if g.smooth_scales_cq is not None or not quantized:
        _scale(g, "smooth_scales_cq", quantized, "with int8 'weight_uq_qr'", (1, HCQ))


def _scale(g: Prolog, name: str, wanted: bool, when: str, shape: tuple[int, ...]) -> None:
    scale = getattr(g, name)
    if not wanted:
        must.hold(scale is None, name, f"None except {when}", "a tensor", ErrCode.PARAM)
        return
    must.present(name, scale, when)
    must.dtype(name, scale, torch.float32)
    must.shape(name, scale, shape)
