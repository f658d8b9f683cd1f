"""The constraints of npu_mla_preprocess, and its sizes."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops._shared._pages import nz_width

CACHE_MODES = ("krope_ctkv", "int8_nzcache", "nzcache")
QUANT_MODES = ("per_tensor_quant_asymm", "per_token_quant_symm")
HIDDEN, DOWN, LATENT, ROPE, NOPE = 7168, 1536, 512, 64, 128
#: what the kernel of tensor-wise quantization takes instead of HIDDEN
NARROWEST, WIDEST = 2048, 8192


def check(call: Any) -> None:
    """What both forms ask; `call` holds their arguments."""
    rules.family("input", "A2", "A3")
    must.choice("cache_mode", call.cache_mode, (*CACHE_MODES, None))
    must.choice("quant_mode", call.quant_mode, (*QUANT_MODES, None))
    must.dtype("input", call.input, *rules.FLOATS)
    must.ndim("input", call.input, 2)
    tokens, hidden = call.input.shape
    fits = hidden == HIDDEN or (not call.per_token and NARROWEST <= hidden <= WIDEST)
    expected = f"of {HIDDEN} columns ({NARROWEST} to {WIDEST} with 'per_tensor_quant_asymm')"
    must.hold(fits, "input", expected, hidden)
    must.hold(1 <= tokens <= 1024, "input", "of 1 to 1024 tokens", tokens)
    for name in ("gamma0", "beta0", "gamma1", "beta1", "gamma2", "cos", "sin", "wuk"):
        must.same_dtype(name, getattr(call, name), "input", call.input)
    for name, size in (
        ("gamma0", hidden),
        ("beta0", hidden),
        ("gamma1", DOWN),
        ("beta1", DOWN),
    ):
        must.shape(name, getattr(call, name), (size,))
    must.shape("gamma2", call.gamma2, (LATENT,))
    must.shape("cos", call.cos, (tokens, ROPE))
    must.shape("sin", call.sin, (tokens, ROPE))
    must.ndim("wuk", call.wuk, 3, 4)
    heads = call.wuk.shape[0]
    if call.wuk.dim() == 3:
        must.shape("wuk", call.wuk, (heads, NOPE, LATENT))
    else:
        must.shape("wuk", call.wuk, (heads, LATENT // 16, NOPE, 16))
    down, up = DOWN + LATENT + ROPE, heads * (NOPE + ROPE)
    for name, rows, columns in (("wdqkv", down, hidden), ("wuq", up, DOWN)):
        weight = getattr(call, name)
        must.dtype(name, weight, torch.int8)
        plain = (rows, columns) if weight.dim() == 2 else (1, columns // 32, rows, 32)
        must.shape(name, weight, plain)
    packed = not call.per_token and call.input.dtype == torch.float16
    kind = torch.int64 if packed else torch.float32
    must.dtype("descale0", call.descale0, kind)
    must.dtype("descale1", call.descale1, kind)
    must.shape("descale0", call.descale0, (down,))
    must.shape("descale1", call.descale1, (up,))
    _check_caches(call, tokens)
    _check_scales(call, heads, down, up)


def _check_caches(call: Any, tokens: int) -> None:
    int8 = call.cache_mode == "int8_nzcache"
    must.dtype("kv_cache", call.kv_cache, torch.int8 if int8 else call.input.dtype)
    must.same_dtype("kv_cache_rope", call.kv_cache_rope, "input", call.input)
    sizes = (("kv_cache", call.kv_cache, LATENT), ("kv_cache_rope", call.kv_cache_rope, ROPE))
    for name, cache, size in sizes:
        c = nz_width(cache)
        must.shape(name, cache, (None, None, None, c) if call.nz else (None, None, 1, size))
        if call.nz and cache.shape[1] != size // c:  # ATB looks at the block size alone
            whole = cache.shape[1] > 0 and cache.shape[1] % (size // c) == 0
            expected = f"of a multiple of {size // c} in the second dimension"
            must.hold(whole, name, expected, tuple(cache.shape))
            must.hold(cache.is_contiguous(), name, "contiguous", f"strides {cache.stride()}")
    block = call.kv_cache.shape[2 if call.nz else 1]
    fine = block == 128 if call.nz else 1 <= block <= 128 or block == 256
    expected = "of 128 tokens a block" if call.nz else "of at most 128 or of 256 tokens a block"
    must.hold(fine, "kv_cache", expected, block)
    must.dtype("slotmapping", call.slotmapping, torch.int32)
    must.shape("slotmapping", call.slotmapping, (tokens,))
    slots = call.kv_cache.numel() // LATENT
    if must.has_data(call.slotmapping) and tokens:
        most = int(call.slotmapping.max())
        must.hold(most < slots, "slotmapping", f"below {slots}, the slots of 'kv_cache'", most)


def _check_scales(call: Any, heads: int, down: int, up: int) -> None:
    if not call.per_token:
        when = "with quant_mode 'per_tensor_quant_asymm'"
        for name in ("quant_scale0", "quant_offset0", "quant_scale1", "quant_offset1"):
            must.present(name, getattr(call, name), when)
            must.shape(name, getattr(call, name), (1,))
        for name in ("quant_scale0", "quant_scale1"):
            must.same_dtype(name, getattr(call, name), "input", call.input)
        for name in ("quant_offset0", "quant_offset1"):
            must.dtype(name, getattr(call, name), torch.int8)
        for name, size in (("bias0", down), ("bias1", up)):
            bias = getattr(call, name)
            must.dtype(name, bias, torch.int32)
            fits = bias is None or bias.numel() == size
            must.hold(fits, name, f"of {size} elements", bias)
    if call.cache_mode == "int8_nzcache":
        when = "with cache_mode 'int8_nzcache'"
        for name, size in (("ctkv_scale", 1), ("q_nope_scale", heads)):
            must.present(name, getattr(call, name), when)
            must.same_dtype(name, getattr(call, name), "input", call.input)
            must.shape(name, getattr(call, name), (size,))
