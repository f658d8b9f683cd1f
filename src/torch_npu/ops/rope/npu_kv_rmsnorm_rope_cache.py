"""npu_kv_rmsnorm_rope_cache and its _v2 forms: the cache update of multi-head latent attention."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._indices import inside
from torch_npu.ops._shared._rms import rms_normalize
from torch_npu.ops.rope._kv_cache import MODES, blocks_of, quantize, write_tokens
from torch_npu.ops.rope._rotate import rotate

#: the sizes that A2 and A3 take: RMS part, rope part; and with `v`: the key, the value
RMS, ROPE = 512, 64
KEY, VALUE = 192, 128

#: any negative index: the token is not written
_SKIPPED = -(2**63)

_ARGUMENTS = (
    "(Tensor kv, Tensor gamma, Tensor cos, Tensor sin, Tensor index, Tensor{a} k_cache,"
    " Tensor{b} ckv_cache, *, Tensor? k_rope_scale=None, Tensor? c_kv_scale=None,"
    " Tensor? k_rope_offset=None, Tensor? c_kv_offset=None, Tensor? v=None, float epsilon=1e-5,"
    " str cache_mode='Norm', bool is_output_kv=False"
)


def _check_inputs(kv, gamma, cos, sin, v):
    must.dtype("kv", kv, torch.float16, torch.bfloat16)
    must.ndim("kv", kv, 4)
    must.ndim("gamma", gamma, 1)
    must.ndim("cos", cos, 4)
    batch, _, length, width = kv.shape
    fixed = chips.current().family != "A5"
    rope = ROPE if fixed else cos.shape[3]
    if v is None:
        rms = RMS if fixed else gamma.shape[0]
        must.shape("kv", kv, (None, 1, None, rms + rope))
        must.shape("gamma", gamma, (rms,))
    else:
        key, value = (KEY, VALUE) if fixed else (width, v.shape[-1])
        must.shape("kv", kv, (None, 1, None, key))
        must.shape("gamma", gamma, (key,))
        must.shape("v", v, (batch, 1, length, value))
    must.shape("cos", cos, (batch, 1, 1 if cos.shape[2] == 1 else length, rope))
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
        f"{name}_dtype",
        "the cache's own dtype, or hifloat8 for a uint8 cache on Ascend950",
        f"{_dtypes.text(code)} for {cache.dtype}",
        ErrCode.NOT_SUPPORT,
    )


def _check_factors(name, scale, offset_name, offset, size, offsets):
    must.dtype(name, scale, torch.float32)
    must.shape(name, scale, (size,) if scale.dim() == 1 else (1, size))
    if not offsets:
        must.unset(offset_name, offset)
    elif offset is not None:
        must.dtype(offset_name, offset, torch.float32)
        must.shape(offset_name, offset, tuple(scale.shape))


def _check_cache(name, cache, size, scale, kv, mode, code):
    low: tuple[torch.dtype, ...] = (torch.int8,)
    if chips.current().family == "A5":
        low += (torch.float8_e4m3fn, torch.float8_e5m2, *((torch.uint8,) if code else ()))
    if scale is None:
        must.same_dtype(name, cache, "kv", kv)
    else:
        must.dtype(name, cache, *low)
    batch, length = kv.shape[0], kv.shape[2]
    if mode == "Norm":
        must.shape(name, cache, (batch, 1, None, size))
        room = cache.shape[2]
        must.hold(room >= length, name, f"at least {length} tokens long", tuple(cache.shape))
        return
    must.shape(name, cache, (None, None, 1, size))
    blocks, block = cache.shape[0], cache.shape[1]
    if chips.current().family == "A5":
        step = 32 // cache.element_size()
        must.hold(block % step == 0, name, f"of blocks divisible by {step}", tuple(cache.shape))
    if "BLK" in mode:
        needed = blocks_of(length, block) * batch
        must.hold(blocks >= needed, name, f"at least {needed} blocks", tuple(cache.shape))
    else:
        tokens = batch * length
        must.hold(
            blocks * block >= tokens, name, f"room for at least {tokens} tokens", tuple(cache.shape)
        )
    if mode.endswith("NZ"):
        must.hold(cache.is_contiguous(), name, "contiguous in the NZ modes", cache.stride())


def _check_all(
    kv, gamma, cos, sin, index, k_cache, ckv_cache,
    k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset, v, cache_mode,
    k_cache_dtype=None, ckv_cache_dtype=None,
):  # fmt: skip
    must.choice("cache_mode", cache_mode, MODES)
    _check_inputs(kv, gamma, cos, sin, v)
    key, value = (cos.shape[3], gamma.shape[0]) if v is None else (kv.shape[3], v.shape[3])
    offsets = v is not None or chips.current().family == "A5"
    for name, cache, size, code, (scale_name, scale), (offset_name, offset) in (
        ("k_cache", k_cache, key, k_cache_dtype,
         ("k_rope_scale", k_rope_scale), ("k_rope_offset", k_rope_offset)),
        ("ckv_cache", ckv_cache, value, ckv_cache_dtype,
         ("c_kv_scale", c_kv_scale), ("c_kv_offset", c_kv_offset)),
    ):  # fmt: skip
        _check_format(name, cache, code)
        if scale is None:
            must.unset(offset_name, offset)
        else:
            _check_factors(scale_name, scale, offset_name, offset, size, offsets)
        _check_cache(name, cache, size, scale, kv, cache_mode, code)
    must.dtype("index", index, torch.int64)
    batch, length = kv.shape[0], kv.shape[2]
    if cache_mode == "Norm":
        must.shape("index", index, (batch, length))
        inside("index", index, min(k_cache.shape[2], ckv_cache.shape[2]), low=_SKIPPED)
        return
    must.shape("ckv_cache", ckv_cache, (*k_cache.shape[:3], None))
    entries = blocks_of(length, k_cache.shape[1]) if "BLK" in cache_mode else length
    must.shape("index", index, (batch * entries,))
    inside("index", index, k_cache.shape[0] * k_cache.shape[1], low=_SKIPPED)


def _shapes(kv, gamma, cos, v):
    """The shapes of the rotated key and of the value before they go into the cache."""
    rows = kv.shape[:3]
    if v is None:
        return (*rows, cos.shape[3]), (*rows, gamma.shape[0])
    return tuple(kv.shape), (*rows, v.shape[3])


def _update(
    kv, gamma, cos, sin, index, k_cache, ckv_cache,
    *, k_rope_scale=None, c_kv_scale=None, k_rope_offset=None, c_kv_offset=None, v=None,
    epsilon=1e-5, cache_mode="Norm", is_output_kv=False, k_cache_dtype=None, ckv_cache_dtype=None,
):  # fmt: skip
    """Writes both caches and returns the unquantized key and value, zeros where not asked for."""
    angles = wide(cos), wide(sin)
    rope = cos.shape[3]
    if v is None:
        rms_in, rope_in = kv.split((gamma.shape[0], rope), -1)
        value = rms_normalize(rms_in, gamma, epsilon)[0] * wide(gamma)
        key = rotate(wide(rope_in), *angles, "interleave-half")
    else:
        value = wide(v)
        key = rms_normalize(kv, gamma, epsilon)[0] * wide(gamma)
        turned = rotate(key[..., :rope], *angles, "interleave-half")
        key = torch.cat((turned, key[..., rope:]), -1)
    for cache, rows, scale, offset, code in (
        (k_cache, key, k_rope_scale, k_rope_offset, k_cache_dtype),
        (ckv_cache, value, c_kv_scale, c_kv_offset, ckv_cache_dtype),
    ):
        rows = quantize(rows, scale, cache.dtype, offset, _formats.chosen(code, ""))
        write_tokens(cache, index, rows, cache_mode)
    if is_output_kv and cache_mode != "Norm":
        return key.to(kv.dtype), value.to(kv.dtype)
    return tuple(kv.new_zeros(shape) for shape in _shapes(kv, gamma, cos, v))


def _new_outputs(kv, gamma, cos, v):
    return tuple(kv.new_empty(shape) for shape in _shapes(kv, gamma, cos, v))


def _sample(mode="Norm", quantized=False, with_value=False, **options):
    """Two sequences of three tokens, into caches of blocks of two."""

    def build(make):
        half = torch.float16
        width, key, value = (KEY, KEY, VALUE) if with_value else (RMS + ROPE, ROPE, RMS)
        index = make(6, dtype=torch.int64, low=0, high=1)
        index = index + torch.arange(6, device=index.device)
        if mode == "Norm":
            index, shape = index.view(2, 3), (2, 1, 8)
        else:
            index, shape = (2 * index[:4] if "BLK" in mode else index), (4, 2, 1)
        kind = {"dtype": torch.int8, "low": 0, "high": 2} if quantized else {"dtype": half}
        return (
            make(2, 1, 3, width, dtype=half),
            make(KEY if with_value else RMS, dtype=half),
            make(2, 1, 3, ROPE, dtype=half),
            make(2, 1, 3, ROPE, dtype=half, low=0),
            index,
            make(*shape, key, **kind),
            make(*shape, value, **kind),
        )

    def kwargs(make):
        scales = {"k_rope_scale": make(ROPE), "c_kv_scale": make(RMS)} if quantized else {}
        value = {"v": make(2, 1, 3, VALUE, dtype=torch.float16)} if with_value else {}
        return {"cache_mode": mode, **scales, **value, **options}

    return Sample(build, kwargs, name=mode)


@npu_op(
    f"npu_kv_rmsnorm_rope_cache{_ARGUMENTS.format(a='', b='')}) -> (Tensor, Tensor, Tensor, Tensor)",
    ge="KvRmsNormRopeCache",
)
def npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, index, k_cache, ckv_cache, **options):
    r"""Splits kv, normalizes the one part, rotates the other, and writes both into caches.

    $$ (c, r) = \mathrm{split}(kv), \qquad
       y = \frac{c}{\sqrt{\mathrm{mean}(c^2) + \epsilon}} \cdot \gamma, \qquad
       k = \mathrm{rope}(r) $$

    rope is that of `npu_interleave_rope`; k goes to `k_cache` and y to `ckv_cache`. With `v`, the
    whole of kv is normalized, its first 64 elements are rotated, the result goes to `k_cache` and
    `v` to `ckv_cache`.

    Args:
        kv: (B, 1, S, 576), the RMS part of 512 before the rope part of 64; with `v` (B, 1, S, 192);
            float16 or bfloat16, which gamma, cos, sin and v share.
        gamma: (512,), with `v` (192,).
        cos, sin: (B, 1, S, 64), or (B, 1, 1, 64) for all tokens of a sequence.
        index: int64; its shape and meaning depend on `cache_mode`. A negative value skips its token
            or block; a repeated one leaves undefined which token is kept.
        k_cache, ckv_cache: written in place; their last dimension is 64 and 512 (with `v` 192 and
            128); the dtype of `kv`, or int8 where scales are given.
        k_rope_scale, c_kv_scale: float32 factors of one cache row, (D,) or (1, D); each makes its cache
            int8: round(x * scale), saturating.
        k_rope_offset, c_kv_offset: float32, of the shape of their scales: added after them; with
            `v`, and on Ascend950.
        v: (B, 1, S, 128), see above; not on upstream's page.
        epsilon: added to the mean square.
        cache_mode: how the caches are laid out and what `index` says:
            Norm: caches (B, 1, length, D); index (B, S), the position in each sequence.
            PA, PA_BNSD: caches (blocks, block, 1, D); index (B * S,), the position in all blocks.
            PA_NZ: as PA, but a block is stored as (D / d0, block, d0), d0 = 16, for int8 32.
            PA_BLK_BNSD: as PA, index (B * ceil(S / block),), where the page of each block starts.
            PA_BLK_NZ: blocks stored as in PA_NZ, index as in PA_BLK_BNSD.
        is_output_kv: whether k and y are given as well, unquantized; not in the mode Norm.

    Returns:
        `k_cache` and `ckv_cache` themselves, k of shape (B, 1, S, 64) and y of shape (B, 1, S, 512)
        in the dtype of `kv` (with `v` 192 and 128). Where they are not asked for upstream leaves k
        and y uninitialized; here they are then zero.

    Upstream's schema does not declare the mutation of the caches, so neither does this one; the _v2
    form does.

    Differs from upstream: the page asks for ceil(S / block) * B blocks in every PA mode; those that
    map single tokens need only room for B * S of them here, as inference engines use them. On
    Ascend950 other sizes and 8-bit float caches are accepted, and blocks are of a multiple of 16
    tokens (32 for 8-bit caches).
    """
    return (
        k_cache,
        ckv_cache,
        *_update(kv, gamma, cos, sin, index, k_cache, ckv_cache, **options),
    )


@npu_kv_rmsnorm_rope_cache.check
def _(**arguments):
    del arguments["epsilon"], arguments["is_output_kv"]
    _check_all(**arguments)


@npu_kv_rmsnorm_rope_cache.meta
def _(kv, gamma, cos, k_cache, ckv_cache, v):
    outputs = _new_outputs(kv, gamma, cos, v)
    return torch.empty_like(k_cache), torch.empty_like(ckv_cache), *outputs


npu_kv_rmsnorm_rope_cache.samples = [
    _sample(),
    _sample("PA_BNSD", is_output_kv=True),
    _sample("PA_NZ", quantized=True, epsilon=1e-3),
    _sample("PA_BLK_NZ", is_output_kv=True),
    _sample("PA_BLK_BNSD", with_value=True),
]


_TYPED = " int? k_cache_dtype=None, int? ckv_cache_dtype=None)"


@npu_op(
    f"npu_kv_rmsnorm_rope_cache_v2{_ARGUMENTS.format(a='(a!)', b='(b!)')},{_TYPED} -> (Tensor, Tensor)",
    functional=f"npu_kv_rmsnorm_rope_cache_v2_functional{_ARGUMENTS.format(a='', b='')},{_TYPED}"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def npu_kv_rmsnorm_rope_cache_v2(k_cache_dtype, ckv_cache_dtype, **arguments):
    """`npu_kv_rmsnorm_rope_cache` with the caches' mutation declared; it returns k and y only.

    `k_cache_dtype` and `ckv_cache_dtype` say what the bytes of a uint8 cache are: hifloat8, on
    Ascend950.
    """
    return _update(k_cache_dtype=k_cache_dtype, ckv_cache_dtype=ckv_cache_dtype, **arguments)


@npu_kv_rmsnorm_rope_cache_v2.check
def _(**arguments):
    del arguments["epsilon"], arguments["is_output_kv"]
    _check_all(**arguments)


npu_kv_rmsnorm_rope_cache_v2.samples = [
    _sample("PA", is_output_kv=True),
    _sample("PA_BLK_BNSD", quantized=True),
]
