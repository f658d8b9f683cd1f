"""The documented constraints of npu_mla_prolog_v3."""

from __future__ import annotations

import math

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.mla import _prolog
from torch_npu.ops.mla._v3 import GROUP, MX, PER_CHANNEL, PER_TENSOR, PER_TILE, PrologV3

HCQ, HCKV, DEPTHS, DR = (1536, 2048), 512, (128, 192), 64
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
TILED_WIDTH = 656
CACHE_MODES = ("PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND")

#: (weight_quant_mode, kv_cache_quant_mode) -> query_quant_mode
MODES = {(0, 0): 0, (1, 0): 0, (1, PER_CHANNEL): 0, (1, PER_TILE): 0} | {
    (weight, cache): int(cache == PER_TENSOR)
    for weight in (2, 3, 4, 5)
    for cache in (0, PER_TENSOR, PER_TILE)
}

_STORED = {
    1: torch.int8,
    2: torch.int8,
    3: torch.float8_e4m3fn,
    4: torch.float8_e4m3fn,
    5: torch.uint8,
}


def check(given: PrologV3) -> None:
    """Raises for the first constraint that the arguments break."""
    _modes(given)
    _dtype_rules(given)
    _shapes(given)
    _scales(given)
    _index(given)


def _modes(g: PrologV3) -> None:
    family = chips.current().family
    must.hold(
        family in ("A2", "A3", "A5"),
        "token_x",
        "on an Atlas A2 or A3 product or an Ascend 950",
        family,
        ErrCode.NOT_SUPPORT,
    )
    must.choice("weight_quant_mode", g.weight_quant_mode, range(6 if family == "A5" else 3))
    must.choice("cache_mode", g.cache_mode, CACHE_MODES)
    pair = (g.weight_quant_mode, g.kv_cache_quant_mode)
    allowed = [cache for weight, cache in MODES if weight == g.weight_quant_mode]
    must.hold(
        pair in MODES,
        "kv_cache_quant_mode",
        f"{must.one_of(allowed)} with weight_quant_mode {g.weight_quant_mode}",
        g.kv_cache_quant_mode,
    )
    why = f"with kv_cache_quant_mode {g.kv_cache_quant_mode}"
    must.hold(
        g.query_quant_mode == MODES[pair],
        "query_quant_mode",
        f"{MODES[pair]} {why}",
        g.query_quant_mode,
    )
    tiled = g.kv_cache_quant_mode == PER_TILE
    for name in ("ckvkr_repo_mode", "quant_scale_repo_mode"):
        must.hold(getattr(g, name) == int(tiled), name, f"{int(tiled)} {why}", getattr(g, name))
    must.choice("tile_size", g.tile_size, (128,))
    if tiled:
        must.hold(
            g.cache_mode in ("PA_BSND", "BSND", "TND"),
            "cache_mode",
            f"'PA_BSND', 'BSND' or 'TND' {why}",
            repr(g.cache_mode),
        )


def _dtype_rules(g: PrologV3) -> None:
    bf16 = torch.bfloat16
    low = _STORED.get(g.weight_quant_mode, bf16)
    down = low if g.weight_quant_mode > 1 else bf16
    for name in ("token_x", "weight_dq", "weight_dkv_kr"):
        must.dtype(name, getattr(g, name), down)
    must.dtype("weight_uq_qr", g.weight_uq_qr, low)
    for name in ("weight_uk", "rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos"):
        must.dtype(name, getattr(g, name), bf16)
    must.dtype("kv_cache", g.kv_cache, low if g.kv_cache_quant_mode else bf16)
    if g.kv_cache_quant_mode != PER_TILE:  # with tiles it is empty, of any dtype
        low_keys = g.kv_cache_quant_mode == PER_CHANNEL
        must.dtype("kr_cache", g.kr_cache, torch.int8 if low_keys else bf16)
    if g.weight_quant_mode == 5:  # otherwise the codes are read nowhere
        code = _dtypes.CODES["hifloat8"]
        names = ["token_x_dtype", "weight_dq_dtype", "weight_uq_qr_dtype", "weight_dkv_kr_dtype"]
        for name in (*names, *(("kv_cache_dtype",) if g.kv_cache_quant_mode else ())):
            given = getattr(g, name)
            must.hold(given == code, name, f"torch_npu.hifloat8 ({code})", given)


def _shapes(g: PrologV3) -> None:
    must.ndim("token_x", g.token_x, 2, 3)
    tokens = tuple(g.token_x.shape[:-1])
    he = _prolog.check_tokens(g.token_x)
    if g.cache_mode in ("BSND", "TND"):
        must.ndim("token_x", g.token_x, 3 if g.cache_mode == "BSND" else 2)
    must.ndim("weight_uk", g.weight_uk, 3)
    heads, depth, _ = g.weight_uk.shape
    must.hold(heads in HEADS, "weight_uk", f"of {must.one_of(HEADS)} heads", heads)
    must.hold(depth in DEPTHS, "weight_uk", f"of head size {must.one_of(DEPTHS)}", depth)
    must.shape("weight_uk", g.weight_uk, (heads, depth, HCKV))
    must.shape("weight_dq", g.weight_dq, (he, None))
    hcq = g.weight_dq.shape[1]
    must.hold(hcq in HCQ, "weight_dq", f"of {must.one_of(HCQ)} columns", hcq)
    must.shape("weight_uq_qr", g.weight_uq_qr, (hcq, heads * (depth + DR)))
    must.shape("weight_dkv_kr", g.weight_dkv_kr, (he, HCKV + DR))
    must.shape("rmsnorm_gamma_cq", g.rmsnorm_gamma_cq, (hcq,))
    must.shape("rmsnorm_gamma_ckv", g.rmsnorm_gamma_ckv, (HCKV,))
    must.shape("rope_sin", g.rope_sin, (*tokens, DR))
    must.shape("rope_cos", g.rope_cos, (*tokens, DR))
    tiled = g.kv_cache_quant_mode == PER_TILE
    width = TILED_WIDTH if tiled else HCKV
    rows = (None, None) if g.cache_mode.startswith("PA_") else tokens
    must.shape("kv_cache", g.kv_cache, (*rows, 1, width))
    if g.cache_mode.startswith("PA_"):
        _prolog.check_block(g.kv_cache.shape[1])
    if tiled:
        must.hold(g.kr_cache.numel() == 0, "kr_cache", "empty", tuple(g.kr_cache.shape))
    else:
        must.shape("kr_cache", g.kr_cache, (*g.kv_cache.shape[:-1], DR))
    _prolog.check_order(g.cache_mode, kv_cache=g.kv_cache, kr_cache=g.kr_cache)


def _scales(g: PrologV3) -> None:
    weight, cache = g.weight_quant_mode, g.kv_cache_quant_mode
    (he, hcq), up = g.weight_dq.shape, g.weight_uq_qr.shape[1]
    count = math.prod(g.token_x.shape[:-1])
    of_weight, of_cache = f"with weight_quant_mode {weight}", f"with kv_cache_quant_mode {cache}"
    full, mx = weight > 1, weight == MX
    exponent = torch.float8_e8m0fnu if mx else torch.float32

    def need(name, wanted, when, shape, dtype=torch.float32):
        scale = getattr(g, name)
        if not wanted:
            must.hold(scale is None, name, f"None {when}", "a tensor", ErrCode.PARAM)
            return
        must.present(name, scale, when)
        must.dtype(name, scale, dtype)
        must.shape(name, scale, shape)

    columns = {"dequant_scale_w_dq": (hcq, he), "dequant_scale_w_dkv_kr": (HCKV + DR, he)}
    for name, (outer, inner) in columns.items():
        need(name, full, of_weight, (outer, inner // GROUP) if mx else (1, outer), exponent)
    need("dequant_scale_x", full, of_weight, (count, he // GROUP if mx else 1), exponent)
    shape: tuple[int, ...] = (up, hcq // GROUP) if mx else (1, up)
    need("dequant_scale_w_uq_qr", weight > 0, of_weight, shape, exponent)
    if g.smooth_scales_cq is not None:
        need("smooth_scales_cq", weight in (1, 2, 4, 5), of_weight, (1, hcq))
    shape = (1,) if cache == PER_TENSOR else (1, HCKV)
    need("quant_scale_ckv", cache in (PER_TENSOR, PER_CHANNEL), of_cache, shape)
    need("quant_scale_ckr", cache == PER_CHANNEL, of_cache, (1, DR))
    clips = cache == PER_TILE and weight in (1, 2)
    need("k_nope_clip_alpha", clips, f"{of_weight} and {of_cache}", (1,))


def _index(g: PrologV3) -> None:
    tokens = tuple(g.token_x.shape[:-1])
    when = f"with cache_mode {g.cache_mode!r}"
    blocks = g.cache_mode.startswith("PA_BLK")
    if g.cache_mode in ("BSND", "TND"):
        must.hold(g.cache_index is None, "cache_index", f"None {when}", "a tensor", ErrCode.PARAM)
    else:
        must.present("cache_index", g.cache_index, when)
        must.dtype("cache_index", g.cache_index, torch.int64)
        size = g.kv_cache.shape[1]
        if not blocks:
            must.shape("cache_index", g.cache_index, tokens)
        elif len(tokens) == 2:
            must.shape("cache_index", g.cache_index, (tokens[0], -(-tokens[1] // size)))
        else:
            must.ndim("cache_index", g.cache_index, 1)
        limit = g.kv_cache.shape[0] * (1 if blocks else size)
        if limit and must.has_data(g.cache_index) and g.cache_index.numel():
            most = int(g.cache_index.max())
            must.hold(most < limit, "cache_index", f"below {limit}", most)
    if blocks and len(tokens) == 1:
        must.present("actual_seq_len", g.actual_seq_len, f"{when} and tokens of 2 dimensions")
        must.dtype("actual_seq_len", g.actual_seq_len, torch.int32)
        must.ndim("actual_seq_len", g.actual_seq_len, 1)
        if must.has_data(g.actual_seq_len) and g.actual_seq_len.numel():
            last = int(g.actual_seq_len[-1])
            expected = f"a running sum that ends in the number of tokens ({tokens[0]})"
            must.hold(last == tokens[0], "actual_seq_len", expected, last)
    else:
        given = g.actual_seq_len
        must.hold(given is None, "actual_seq_len", f"None {when}", "a tensor", ErrCode.PARAM)
