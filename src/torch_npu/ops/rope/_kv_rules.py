"""The constraints of npu_kv_rmsnorm_rope_cache and its _v2 forms."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.rope._kv_cache import MODES, blocks_of

#: the sizes that A2 and A3 take: RMS part, rope part; and with `v`: the key, the value, the heads
RMS, ROPE = 512, 64
KEY, VALUE = 192, 128
HEADS = (1, 2, 4, 8)

#: any negative index: the token is not written
_SKIPPED = -(2**63)


def reads_offsets(v):
    """A2 and A3 read an offset with `v` alone."""
    return v is not None or chips.current().family == "A5"


def _check_inputs(kv, gamma, cos, sin, v):
    must.dtype("kv", kv, torch.float16, torch.bfloat16)
    must.ndim("kv", kv, 4)
    must.ndim("gamma", gamma, 1)
    must.ndim("cos", cos, 4)
    batch, heads, length, width = kv.shape
    fixed = chips.current().family != "A5"
    rope = ROPE if fixed else cos.shape[3]
    must.hold(rope % 2 == 0, "cos", "of an even last dimension", tuple(cos.shape))
    if v is None:
        rms = RMS if fixed else gamma.shape[0]
        must.shape("kv", kv, (None, 1, None, rms + rope))
        must.shape("gamma", gamma, (rms,))
    else:
        key, value = (KEY, VALUE) if fixed else (width, v.shape[-1])
        counts = HEADS if fixed else (1,)
        must.hold(heads in counts, "kv", f"of {must.one_of(counts)} heads", heads, ErrCode.PARAM)
        must.shape("kv", kv, (None, None, None, key))
        must.shape("gamma", gamma, (key,))
        must.shape("v", v, (batch, heads, length, value))
    must.shape("cos", cos, (batch, heads, 1 if cos.shape[2] == 1 else length, rope))
    must.shape("sin", sin, tuple(cos.shape))
    for name, tensor in (("gamma", gamma), ("cos", cos), ("sin", sin), ("v", v)):
        must.same_dtype(name, tensor, "kv", kv)


def _check_format(name, cache, code):
    """A cache's format: that of its dtype, or hifloat8 in bytes, named by its number (A5)."""
    kind = _formats.chosen(code, "")
    if code is None or _dtypes.storage(code) == cache.dtype != torch.uint8:
        return
    must.hold(
        kind == "hifloat8" and cache.dtype == torch.uint8 and chips.current().family == "A5",
        name,
        "the cache's own dtype, or hifloat8 for a uint8 cache on Ascend950",
        f"{_dtypes.text(code)} for {cache.dtype}",
        ErrCode.NOT_SUPPORT,
    )


def _check_factors(name, scale, offset_name, offset, heads, size, offsets):
    """A scale of its cache and an offset; `offsets` says whether the card reads one."""
    _check_factor(name, scale, heads, size)
    if offsets and offset is not None:
        _check_factor(offset_name, offset, heads, size)
        if chips.current().family != "A5":
            must.shape(offset_name, offset, tuple(scale.shape))


def _check_factor(name, factor, heads, size):
    must.dtype(name, factor, torch.float32)
    if chips.current().family == "A5":
        expected = f"of {size} elements or 1"
        must.hold(factor.numel() in (1, size), name, expected, tuple(factor.shape), ErrCode.PARAM)
    else:
        row = factor.dim() == 1 and heads == 1
        must.shape(name, factor, (size,) if row else (heads, size))


def _check_cache(name, cache, size, scale, kv, mode, code):
    low: tuple[torch.dtype, ...] = (torch.int8,)
    if chips.current().family == "A5":
        low += (torch.float8_e4m3fn, torch.float8_e5m2, *((torch.uint8,) if code else ()))
    if scale is None:
        must.same_dtype(name, cache, "kv", kv)
    else:
        must.dtype(name, cache, *low)
    batch, heads = kv.shape[:2]
    if mode == "Norm":
        must.shape(name, cache, (None, heads, None, size))
        must.hold(cache.shape[0] >= batch, name, f"of at least {batch} batches", tuple(cache.shape))
        return
    must.shape(name, cache, (None, None, heads, size))
    step = 32 // cache.element_size()
    if chips.current().family == "A5":
        fits = cache.shape[1] % step == 0
        must.hold(fits, name, f"of blocks divisible by {step}", tuple(cache.shape))
    if mode.endswith("NZ"):
        must.hold(size % step == 0, name, f"of rows divisible by {step}", tuple(cache.shape))
        must.hold(cache.is_contiguous(), name, "contiguous in the NZ modes", cache.stride())


def check(
    kv, gamma, cos, sin, index, k_cache, ckv_cache,
    k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset, v, cache_mode,
    k_cache_dtype=None, ckv_cache_dtype=None,
):  # fmt: skip
    must.choice("cache_mode", cache_mode, MODES)
    _check_inputs(kv, gamma, cos, sin, v)
    key, value = (cos.shape[3], gamma.shape[0]) if v is None else (kv.shape[3], v.shape[3])
    offsets = reads_offsets(v)
    for name, cache, size, (code_name, code), (scale_name, scale), (offset_name, offset) in (
        ("k_cache", k_cache, key, ("k_cache_dtype", k_cache_dtype),
         ("k_rope_scale", k_rope_scale), ("k_rope_offset", k_rope_offset)),
        ("ckv_cache", ckv_cache, value, ("ckv_cache_dtype", ckv_cache_dtype),
         ("c_kv_scale", c_kv_scale), ("c_kv_offset", c_kv_offset)),
    ):  # fmt: skip
        _check_format(code_name, cache, code)
        if scale is None:
            must.unset(offset_name, offset)
        else:
            plain = cache_mode != "Norm" or offsets
            must.hold(plain, scale_name, "None in the mode Norm without 'v'", "a tensor")
            _check_factors(scale_name, scale, offset_name, offset, kv.shape[1], size, offsets)
        _check_cache(name, cache, size, scale, kv, cache_mode, code)
    must.dtype("index", index, torch.int64)
    batch, length = kv.shape[0], kv.shape[2]
    room, entries = k_cache.shape[2], length
    if cache_mode == "Norm":
        must.shape("ckv_cache", ckv_cache, (None, None, room, None))
    else:
        must.shape("ckv_cache", ckv_cache, (*k_cache.shape[:3], None))
        room = k_cache.shape[0] * k_cache.shape[1]
        entries = blocks_of(length, k_cache.shape[1]) if "BLK" in cache_mode else length
    count = batch * entries
    fits = index.numel() == count
    must.hold(fits, "index", f"of {count} elements", tuple(index.shape), ErrCode.PARAM)
    inside("index", index, room, low=_SKIPPED)
