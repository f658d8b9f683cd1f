"""npu_mla_prolog_v3 and its functional form are one computation; this is it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_npu.ops._math import wide
from torch_npu.ops._shared import _formats
from torch_npu.ops.mla import _prolog

#: the format of the quantized weights and of what goes with them, by weight_quant_mode
FORMATS = {1: "int8", 2: "int8", 3: "float8_e4m3fn", 4: "float8_e4m3fn", 5: "hifloat8"}
MX, GROUP = 3, 32  # the mode with a power-of-two scale for each group of 32, and that size
PER_TENSOR, PER_CHANNEL, PER_TILE = 1, 2, 3  # values of kv_cache_quant_mode


@dataclass
class PrologV3:
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
    kv_cache: Tensor
    kr_cache: Tensor
    cache_index: Tensor | None = None
    dequant_scale_x: Tensor | None = None
    dequant_scale_w_dq: Tensor | None = None
    dequant_scale_w_uq_qr: Tensor | None = None
    dequant_scale_w_dkv_kr: Tensor | None = None
    quant_scale_ckv: Tensor | None = None
    quant_scale_ckr: Tensor | None = None
    smooth_scales_cq: Tensor | None = None
    actual_seq_len: Tensor | None = None
    k_nope_clip_alpha: Tensor | None = None
    rmsnorm_epsilon_cq: float = 1e-05
    rmsnorm_epsilon_ckv: float = 1e-05
    cache_mode: str = "PA_BSND"
    query_norm_flag: bool = False
    weight_quant_mode: int = 0
    kv_cache_quant_mode: int = 0
    query_quant_mode: int = 0
    ckvkr_repo_mode: int = 0
    quant_scale_repo_mode: int = 0
    tile_size: int = 128
    qc_qr_scale: float = 1.0
    kc_scale: float = 1.0
    token_x_dtype: int | None = None
    weight_dq_dtype: int | None = None
    weight_uq_qr_dtype: int | None = None
    weight_dkv_kr_dtype: int | None = None
    kv_cache_dtype: int | None = None

    @property
    def format(self) -> str:
        return FORMATS.get(self.weight_quant_mode, "int8")

    @property
    def quantizes_query(self) -> bool:
        return self.query_quant_mode == 1

    def run(self) -> tuple[Tensor, ...]:
        """query, query_rope, its scales, c^Q and its scales; the caches are updated in place."""
        tokens, dtype = self.token_x.shape[:-1], self.rope_sin.dtype
        x = self.token_x.flatten(0, -2)
        sin, cos = (t.flatten(0, -2) for t in (self.rope_sin, self.rope_cos))
        down = self._down(x, self.weight_dq, self.dequant_scale_w_dq)
        if self.weight_quant_mode < 2:
            down = down.to(dtype)
        normed = _prolog.rms_norm(down, self.rmsnorm_gamma_cq, self.rmsnorm_epsilon_cq)
        up, norm, norm_scale = self._up(normed * self.qc_qr_scale, dtype)
        query, rope, scale = self._query(up, sin, cos, dtype)
        self._keys(x, sin, cos)
        if not self.query_norm_flag:
            norm = norm.new_empty(0)
            norm_scale = None if norm_scale is None else norm_scale.new_empty(0)
        return (
            query.view(*tokens, *query.shape[1:]),
            rope.to(dtype).view(*tokens, *rope.shape[1:]),
            _given(scale, x),
            norm.view(*tokens, norm.shape[1]) if self.query_norm_flag else norm,
            _given(norm_scale, x),
        )

    def _down(self, x: Tensor, weight: Tensor, weight_scale: Tensor | None) -> Tensor:
        if self.weight_quant_mode == MX:
            assert self.dequant_scale_x is not None and weight_scale is not None
            return grouped(x, self.dequant_scale_x) @ grouped(weight.t(), weight_scale).t()
        return _prolog.down_project(x, weight, self.dequant_scale_x, weight_scale, self.format)

    def _up(self, normed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        weight, scale = self.weight_uq_qr, self.dequant_scale_w_uq_qr
        if self.weight_quant_mode == MX:
            assert scale is not None
            rows, exponents = quantize_groups(wide(normed.to(dtype)))
            return grouped(rows, exponents) @ grouped(weight.t(), scale).t(), rows, exponents
        smooth = self.smooth_scales_cq
        return _prolog.up_project(normed, weight, scale, smooth, dtype, self.format)

    def _query(self, up, sin, cos, dtype):
        heads, depth, _ = self.weight_uk.shape
        up = up.view(up.shape[0], heads, up.shape[1] // heads)
        nope = wide(up[..., :depth].to(dtype)).transpose(0, 1)
        query = (nope @ wide(self.weight_uk)).transpose(0, 1).to(dtype).contiguous()
        rope = _prolog.rotate(up[..., depth:], sin.unsqueeze(1), cos.unsqueeze(1))
        if not self.quantizes_query:
            return query, rope, None
        assert self.quant_scale_ckv is not None
        rows, scale = _prolog.quantize_rows(wide(query), self.format)
        # Attention multiplies both parts of the query by the same scales: undo them for this part.
        return rows, wide(rope.to(dtype)) * (self.quant_scale_ckv.flatten()[0] / scale), scale

    # --- the caches -------------------------------------------------------------------------------

    def _keys(self, x: Tensor, sin: Tensor, cos: Tensor) -> None:
        if x.shape[0] == 0 or self.kv_cache.numel() == 0:
            return
        down = self._down(x, self.weight_dkv_kr, self.dequant_scale_w_dkv_kr)
        width = self.rmsnorm_gamma_ckv.shape[0]
        ckv = _prolog.rms_norm(down[:, :width], self.rmsnorm_gamma_ckv, self.rmsnorm_epsilon_ckv)
        ckv = ckv * self.kc_scale
        kr = _prolog.rotate(down[:, width:], sin, cos)
        slots = self._slots(x.shape[0], x.device)
        if self.kv_cache_quant_mode == PER_TILE:
            self._write(self.kv_cache, self._tiled(ckv, kr.to(self.rope_sin.dtype)), slots)
            return
        if self.kv_cache_quant_mode:
            assert self.quant_scale_ckv is not None
            ckv = _prolog.quantize(ckv, self.quant_scale_ckv, self.format)
        if self.kv_cache_quant_mode == PER_CHANNEL:
            assert self.quant_scale_ckr is not None
            kr = _prolog.quantize(kr, self.quant_scale_ckr)
        self._write(self.kv_cache, ckv, slots)
        self._write(self.kr_cache, kr, slots)

    def _tiled(self, ckv: Tensor, kr: Tensor) -> Tensor:
        """Rows of bytes: the tiles in their format, the rotated part, the scale of each tile."""
        tiles = ckv.unflatten(1, (-1, self.tile_size))
        top = tiles.abs().amax(-1, keepdim=True)
        if self.k_nope_clip_alpha is not None:
            top = top * self.k_nope_clip_alpha
        scale = top / _formats.largest(self.format)
        scaled = torch.where(scale > 0, tiles.clamp(-top, top) / scale, 0)
        parts = (_formats.encode(scaled, self.format).flatten(1), kr, scale.float().flatten(1))
        return torch.cat([p.contiguous().view(torch.uint8) for p in parts], 1).view(
            self.kv_cache.dtype
        )

    def _slots(self, count: int, device: torch.device) -> Tensor:
        """The slot of each token in the flattened cache."""
        token = torch.arange(count, device=device)
        if self.cache_mode in ("BSND", "TND"):
            return token
        assert self.cache_index is not None
        index = self.cache_index.flatten()
        if not self.cache_mode.startswith("PA_BLK"):
            return index
        size = self.kv_cache.shape[1]
        if self.actual_seq_len is None:
            length = self.token_x.shape[1]
            place, first = token % length, token // length * (-(-length // size))
        else:
            ends = self.actual_seq_len.long()
            starts = torch.cat([ends.new_zeros(1), ends[:-1]])
            blocks = (ends - starts + size - 1) // size
            batch = torch.searchsorted(ends, token, right=True)
            place, first = token - starts[batch], (blocks.cumsum(0) - blocks)[batch]
        block = index[first + place // size]
        return torch.where(block < 0, block, block * size + place % size)

    def _write(self, cache: Tensor, rows: Tensor, slots: Tensor) -> None:
        cache = cache.unsqueeze(0) if self.cache_mode == "TND" else cache
        _prolog.scatter(cache, rows, slots, "PA_NZ" if self.cache_mode.endswith("NZ") else "ND")


def _given(scale: Tensor | None, like: Tensor) -> Tensor:
    return torch.empty(0, device=like.device) if scale is None else scale


def grouped(x: Tensor, exponents: Tensor) -> Tensor:
    """The fp32 values of MX-quantized rows: each group of 32 times its power of two."""
    return (x.float().unflatten(-1, (-1, GROUP)) * exponents.float().unsqueeze(-1)).flatten(-2)


def quantize_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn rows; for each group of 32 a float8_e8m0fnu scale, 2^(floor(log2 max) - 8)."""
    groups = x.unflatten(-1, (-1, GROUP))
    top = groups.abs().amax(-1, keepdim=True)
    _, exponent = torch.frexp(top)
    power = torch.where(top > 0, exponent - 1 - 8, -127).clamp(-127, 127)
    scale = torch.ldexp(torch.ones_like(top), power)
    rows = _formats.encode((groups / scale).flatten(-2), "float8_e4m3fn")
    return rows, scale.squeeze(-1).to(torch.float8_e8m0fnu)
