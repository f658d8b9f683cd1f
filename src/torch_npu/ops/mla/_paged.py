"""npu_mla_prolog and npu_mla_prolog_v2 are one computation; this is it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.mla import _prolog

HE, HCQ, HCKV, D, DR, NKV = 7168, 1536, 512, 128, 64, 1
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
CACHE_MODES = ("PA_BSND", "PA_NZ")


@dataclass
class Prolog:
    """The arguments, in the order and with the defaults of both schemas."""

    token_x: Tensor
    weight_dq: Tensor
    weight_uq_qr: Tensor
    weight_uk: Tensor
    weight_dkv_kr: Tensor
    rmsnorm_gamma_cq: Tensor
    rmsnorm_gamma_ckv: Tensor
    rope_sin: Tensor
    rope_cos: Tensor
    cache_index: Tensor
    kv_cache: Tensor
    kr_cache: Tensor
    dequant_scale_x: Tensor | None = None
    dequant_scale_w_dq: Tensor | None = None
    dequant_scale_w_uq_qr: Tensor | None = None
    dequant_scale_w_dkv_kr: Tensor | None = None
    quant_scale_ckv: Tensor | None = None
    quant_scale_ckr: Tensor | None = None
    smooth_scales_cq: Tensor | None = None
    rmsnorm_epsilon_cq: float = 1e-05
    rmsnorm_epsilon_ckv: float = 1e-05
    cache_mode: str = "PA_BSND"

    @property
    def quantizes_query(self) -> bool:
        """Everything int8, the cache included: the query is then int8 too, head by head."""
        return self.token_x.dtype == torch.int8 and self.quant_scale_ckv is not None

    def shapes(self) -> tuple[Tensor, ...]:
        """The results of `run` without their values."""
        tokens, (heads, _, hckv) = self.token_x.shape[:-1], self.weight_uk.shape
        dtype = torch.int8 if self.quantizes_query else self.rope_sin.dtype
        scales = (math.prod(tokens), heads, 1) if self.quantizes_query else (1,)
        new = self.token_x.new_empty
        return (
            new((*tokens, heads, hckv), dtype=dtype),
            new((*tokens, heads, self.rope_sin.shape[-1]), dtype=self.rope_sin.dtype),
            self.kv_cache,
            self.kr_cache,
            new(scales, dtype=torch.float32),
        )

    def run(self) -> tuple[Tensor, ...]:
        """query, query_rope, the two caches (updated in place) and the scales of the query."""
        dtype = self.rope_sin.dtype
        x = self.token_x.flatten(0, -2)
        sin, cos = (t.flatten(0, -2) for t in (self.rope_sin, self.rope_cos))
        query, query_rope, scale = self._query(x, sin, cos, dtype)
        self._keys(x, sin, cos)
        tokens = self.token_x.shape[:-1]
        return (
            query.view(*tokens, *query.shape[1:]),
            query_rope.to(dtype).view(*tokens, *query_rope.shape[1:]),
            self.kv_cache,
            self.kr_cache,
            scale,
        )

    def _query(self, x, sin, cos, dtype):
        down = _prolog.down_project(
            x, self.weight_dq, self.dequant_scale_x, self.dequant_scale_w_dq
        )
        if x.dtype != torch.int8:
            down = down.to(dtype)
        normed = _prolog.rms_norm(down, self.rmsnorm_gamma_cq, self.rmsnorm_epsilon_cq)
        up, _, _ = _prolog.up_project(
            normed, self.weight_uq_qr, self.dequant_scale_w_uq_qr, self.smooth_scales_cq, dtype
        )
        heads, depth, _ = self.weight_uk.shape
        up = up.view(x.shape[0], heads, self.weight_uq_qr.shape[1] // heads)
        nope = up[..., :depth].to(dtype).transpose(0, 1)
        query = (wide(nope) @ wide(self.weight_uk)).transpose(0, 1).to(dtype).contiguous()
        rope = _prolog.rotate(up[..., depth:], sin.unsqueeze(1), cos.unsqueeze(1))
        if not self.quantizes_query:
            return query, rope, torch.zeros(1, device=x.device)
        rows, scale = _prolog.quantize_rows(wide(query))
        # Attention multiplies both parts of the query by the same scales: undo them for this part.
        assert self.quant_scale_ckv is not None
        per_tensor = self.quant_scale_ckv.flatten()[0]
        return rows, wide(rope.to(dtype)) * (per_tensor / scale), scale

    def _keys(self, x, sin, cos):
        down = _prolog.down_project(
            x, self.weight_dkv_kr, self.dequant_scale_x, self.dequant_scale_w_dkv_kr
        )
        width = self.rmsnorm_gamma_ckv.shape[0]
        ckv = _prolog.rms_norm(down[:, :width], self.rmsnorm_gamma_ckv, self.rmsnorm_epsilon_ckv)
        kr = _prolog.rotate(down[:, width:], sin, cos)
        if self.quant_scale_ckv is not None:
            scale = self.quant_scale_ckv
            ckv = _prolog.quantize(ckv, scale.flatten()[0] if self.quantizes_query else scale)
        if self.quant_scale_ckr is not None:
            kr = _prolog.quantize(kr, self.quant_scale_ckr)
        index = self.cache_index.flatten()
        _prolog.scatter(self.kv_cache, ckv, index, self.cache_mode)
        _prolog.scatter(self.kr_cache, kr, index, self.cache_mode)

    # --- constraints ------------------------------------------------------------------------------

    def check(self, *, full_int8: bool) -> None:
        """The documented constraints; `full_int8`: whether the operator takes int8 tokens."""
        family = chips.current().family
        must.hold(
            family in ("A2", "A3"),
            "token_x",
            "on an Atlas A2 or A3 product (others have npu_mla_prolog_v3)",
            family,
            ErrCode.NOT_SUPPORT,
        )
        must.choice("cache_mode", self.cache_mode, CACHE_MODES)
        self._check_dtypes(full_int8)
        self._check_shapes()
        self._check_scales()

    def _check_dtypes(self, full_int8: bool) -> None:
        bf16, int8 = torch.bfloat16, torch.int8
        must.dtype("token_x", self.token_x, *((bf16, int8) if full_int8 else (bf16,)))
        full = self.token_x.dtype == int8
        must.dtype("weight_dq", self.weight_dq, self.token_x.dtype)
        must.dtype("weight_dkv_kr", self.weight_dkv_kr, self.token_x.dtype)
        must.dtype("weight_uq_qr", self.weight_uq_qr, *((int8,) if full else (bf16, int8)))
        quantized = self.weight_uq_qr.dtype == int8
        must.dtype("kv_cache", self.kv_cache, *((bf16, int8) if quantized else (bf16,)))
        kr = bf16 if full else self.kv_cache.dtype
        must.dtype("kr_cache", self.kr_cache, kr)
        for name in ("weight_uk", "rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos"):
            must.dtype(name, getattr(self, name), bf16)
        must.dtype("cache_index", self.cache_index, torch.int64)

    def _check_shapes(self) -> None:
        must.ndim("token_x", self.token_x, 2, 3)
        tokens = tuple(self.token_x.shape[:-1])
        must.shape("token_x", self.token_x, (*tokens, HE))
        if len(tokens) == 2:
            must.hold(tokens[0] <= 65536, "token_x", "of at most 65536 sequences", tokens[0])
            must.hold(tokens[1] <= 16, "token_x", "of at most 16 tokens a sequence", tokens[1])
        else:
            must.hold(tokens[0] <= 1048576, "token_x", "of at most 1048576 tokens", tokens[0])
        must.shape("weight_uk", self.weight_uk, (None, D, HCKV))
        heads = self.weight_uk.shape[0]
        must.hold(heads in HEADS, "weight_uk", f"of {must.one_of(HEADS)} heads", heads)
        must.shape("weight_dq", self.weight_dq, (HE, HCQ))
        must.shape("weight_uq_qr", self.weight_uq_qr, (HCQ, heads * (D + DR)))
        must.shape("weight_dkv_kr", self.weight_dkv_kr, (HE, HCKV + DR))
        must.shape("rmsnorm_gamma_cq", self.rmsnorm_gamma_cq, (HCQ,))
        must.shape("rmsnorm_gamma_ckv", self.rmsnorm_gamma_ckv, (HCKV,))
        must.shape("rope_sin", self.rope_sin, (*tokens, DR))
        must.shape("rope_cos", self.rope_cos, (*tokens, DR))
        must.shape("cache_index", self.cache_index, tokens)
        must.shape("kv_cache", self.kv_cache, (None, None, NKV, HCKV))
        _prolog.check_order(self.cache_mode, kv_cache=self.kv_cache, kr_cache=self.kr_cache)
        blocks, size = self.kv_cache.shape[:2]
        must.hold(size in (16, 128), "kv_cache", "of 16 or 128 tokens a block", size)
        must.shape("kr_cache", self.kr_cache, (blocks, size, NKV, DR))
        slots = blocks * size
        if must.has_data(self.cache_index) and self.cache_index.numel() and slots:
            most = int(self.cache_index.max())
            must.hold(most < slots, "cache_index", f"below {slots}, the slots of the cache", most)

    def _check_scales(self) -> None:
        full = self.token_x.dtype == torch.int8
        quantized = self.weight_uq_qr.dtype == torch.int8
        cache = self.kv_cache.dtype == torch.int8
        heads = self.weight_uk.shape[0]
        count = math.prod(self.token_x.shape[:-1])
        self._scale("dequant_scale_x", full, "with int8 'token_x'", (count, 1))
        self._scale("dequant_scale_w_dq", full, "with int8 'token_x'", (1, HCQ))
        self._scale("dequant_scale_w_dkv_kr", full, "with int8 'token_x'", (1, HCKV + DR))
        up = (1, heads * (D + DR))
        self._scale("dequant_scale_w_uq_qr", quantized, "with int8 'weight_uq_qr'", up)
        self._scale("quant_scale_ckv", cache, "with int8 'kv_cache'", (1, HCKV))
        self._scale("quant_scale_ckr", cache and not full, "with int8 'kr_cache'", (1, DR))
        if self.smooth_scales_cq is not None or not quantized:
            self._scale("smooth_scales_cq", quantized, "with int8 'weight_uq_qr'", (1, HCQ))

    def _scale(self, name: str, wanted: bool, when: str, shape: tuple[int, ...]) -> None:
        scale = getattr(self, name)
        if not wanted:
            must.hold(scale is None, name, f"None except {when}", "a tensor", ErrCode.PARAM)
            return
        must.present(name, scale, when)
        must.dtype(name, scale, torch.float32)
        must.shape(name, scale, shape)
