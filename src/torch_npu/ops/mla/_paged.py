"""npu_mla_prolog and npu_mla_prolog_v2 are one computation; this is it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_npu.ops._math import wide
from torch_npu.ops.mla import _prolog

HE, HCQ, HCKV, D, DR, NKV = 7168, 1536, 512, 128, 64, 1


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
