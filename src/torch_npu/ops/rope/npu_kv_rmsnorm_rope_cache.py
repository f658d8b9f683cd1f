"""npu_kv_rmsnorm_rope_cache and its _v2 forms: the cache update of multi-head latent attention."""

from __future__ import annotations

import torch

from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._rms import rms_normalize
from torch_npu.ops.rope import _kv_rules as rules
from torch_npu.ops.rope._kv_cache import quantize, write_tokens
from torch_npu.ops.rope._kv_rules import KEY, RMS, ROPE, VALUE
from torch_npu.ops.rope._rotate import rotate

_ARGUMENTS = (
    "(Tensor kv, Tensor gamma, Tensor cos, Tensor sin, Tensor index, Tensor{a} k_cache,"
    " Tensor{b} ckv_cache, *, Tensor? k_rope_scale=None, Tensor? c_kv_scale=None,"
    " Tensor? k_rope_offset=None, Tensor? c_kv_offset=None, Tensor? v=None, float epsilon=1e-5,"
    " str cache_mode='Norm', bool is_output_kv=False"
)


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
    offsets = rules.reads_offsets(v)
    for cache, rows, scale, offset, code in (
        (k_cache, key, k_rope_scale, k_rope_offset, k_cache_dtype),
        (ckv_cache, value, c_kv_scale, c_kv_offset, ckv_cache_dtype),
    ):
        heads = rows.shape[1]
        scale, offset = (_by_head(t, heads) for t in (scale, offset if offsets else None))
        rows = quantize(rows, scale, cache.dtype, offset, _formats.chosen(code, ""))
        for head in range(heads):
            part = _of_head(cache, head, heads, cache_mode)
            write_tokens(part, index, rows[:, head : head + 1], cache_mode)
    if is_output_kv and cache_mode != "Norm":
        return key.to(kv.dtype), value.to(kv.dtype)
    return tuple(kv.new_zeros(shape) for shape in _shapes(kv, gamma, cos, v))


def _by_head(factor, heads):
    """A row for each head, or one element, so that it multiplies (B, N, S, D)."""
    return None if factor is None else factor.reshape(heads, 1, -1)


def _of_head(cache, head, heads, mode):
    """The part of the cache that one head fills, in the shape of a cache of one head."""
    if mode == "Norm":
        return cache[:, head : head + 1]
    if mode.endswith("NZ") and heads > 1:
        blocks, block, _, size = cache.shape
        return cache.view(blocks, heads, block, 1, size)[:, head]
    return cache[:, :, head : head + 1]


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
    chips=("A2", "A3", "A5"),
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
        kv: (B, 1, S, 576), the RMS part of 512 before the rope part of 64; with `v` (B, N, S, 192) of 1, 2, 4 or
            8 heads (Ascend950: 1); float16 or bfloat16, which gamma, cos, sin and v share.
        gamma: (512,), with `v` (192,).
        cos, sin: (B, N, S, 64), or (B, N, 1, 64) for all tokens of a sequence.
        index: int64; its number of elements and meaning depend on `cache_mode`. A negative value skips its token
            or block; a repeated one leaves undefined which token is kept.
        k_cache, ckv_cache: written in place; their last dimension is 64 and 512 (with `v` 192 and
            128); the dtype of `kv`, or int8 where scales are given.
        k_rope_scale, c_kv_scale: float32 factors of one cache row, (D,) or (N, D), on Ascend950 also of one
            element; each makes its cache int8: round(x * scale), saturating. Not in the mode Norm without `v`
            but on Ascend950.
        k_rope_offset, c_kv_offset: float32, of the shape of their scales: added after them; A2 and A3 read them
            with `v` alone.
        v: (B, N, S, 128), see above; not on upstream's page.
        epsilon: added to the mean square.
        cache_mode: how the caches are laid out and what `index` says:
            Norm: caches (B, N, length, D); index (B, S), the position in each sequence.
            PA, PA_BNSD: caches (blocks, block, N, D); index (B * S,), the position in all blocks.
            PA_NZ: as PA, but a block is stored as (N, D / d0, block, d0), d0 = 16, for int8 32.
            PA_BLK_BNSD: as PA, index (B * ceil(S / block),), where the page of each block starts.
            PA_BLK_NZ: blocks stored as in PA_NZ, index as in PA_BLK_BNSD.
        is_output_kv: whether k and y are given as well, unquantized; not in the mode Norm.

    Returns:
        `k_cache` and `ckv_cache` themselves, k of shape (B, 1, S, 64) and y of shape (B, 1, S, 512)
        in the dtype of `kv` (with `v` 192 and 128). Where they are not asked for upstream leaves k
        and y uninitialized; here they are then zero.

    Upstream's schema does not declare the mutation of the caches, so neither does this one; the _v2
    form does.

    On Ascend950 other sizes and 8-bit float caches are accepted, and blocks are of a multiple of 16 tokens (32 for
    8-bit caches).
    """
    return (
        k_cache,
        ckv_cache,
        *_update(kv, gamma, cos, sin, index, k_cache, ckv_cache, **options),
    )


@npu_kv_rmsnorm_rope_cache.check
def _(**arguments):
    del arguments["epsilon"], arguments["is_output_kv"]
    rules.check(**arguments)


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
    chips=("A2", "A3", "A5"),
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
    rules.check(**arguments)


npu_kv_rmsnorm_rope_cache_v2.samples = [
    _sample("PA", is_output_kv=True),
    _sample("PA_BLK_BNSD", quantized=True),
]
