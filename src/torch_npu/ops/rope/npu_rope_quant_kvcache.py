"""npu_rope_quant_kvcache and npu_dequant_rope_quant_kvcache: split, rotate, quantize, write into caches."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops.rope import _rotate

_HALF = (torch.float16, torch.bfloat16)


def _rotated(x, cos, sin):
    """Queries or keys, in fp32. CANN's kernel (dequant_rope_quant_kvcache.h) works in float16 where cos has this type,
    so that both products and their sum are rounded; bfloat16 is computed in fp32."""
    working = torch.float16 if cos.dtype == torch.float16 else torch.float32
    return _rotate.rotate(x.to(working), cos.to(working), sin.to(working), "half").float()


def _store(x, scale, offset, cache, indices, paged):
    """x (B, S, N, D) quantized into its cache."""
    whole = x / scale.reshape(x.shape[2:])
    whole = whole if offset is None else whole + offset.reshape(x.shape[2:])
    values = saturate(whole, torch.int8)
    if paged:
        slots, size = indices.long(), cache.shape[1]
        cache.index_put_((slots // size, slots % size), values.flatten(0, 1))
        return
    rows = indices.long().unsqueeze(1) + torch.arange(x.shape[1], device=x.device)
    batch = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    cache.index_put_((batch, rows), values)


def _update(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, kv_output, cache_mode
):  # fmt: skip
    """x in fp32, (B, S, H) or (B, H); writes the caches and returns q, k and v."""
    heads, width = k_cache.shape[2:]
    flat = x.dim() == 2
    q, k, v = (x.unsqueeze(1) if flat else x).split(list(size_splits), -1)
    q, k, v = (t.unflatten(-1, (-1, width)) for t in (q, k, v))
    c, s = (t.reshape(*q.shape[:2], 1, width) for t in (cos, sin))
    q, k = _rotated(q, c, s), _rotated(k, c, s)
    paged = cache_mode == "page"
    _store(k, scale_k, offset_k, k_cache, indices, paged)
    _store(v, scale_v, offset_v, v_cache, indices, paged)
    q, k, v = (t.to(cos.dtype) for t in (q, k, v))
    if flat:
        q, k, v = q.squeeze(1), k.squeeze(1), v.squeeze(1)
    nothing = cos.new_empty(0)
    return (q, k, v) if kv_output else (q, nothing, nothing.clone())


_TAIL = (
    'int quant_mode=0, str input_layout="BSND", bool kv_output=False, str cache_mode="contiguous")'
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_HEAD = (
    "(Tensor x, Tensor cos, Tensor sin, Tensor k_cache, Tensor v_cache, Tensor indices, "
    "Tensor scale_k, Tensor scale_v, int[3] size_splits, *, Tensor? offset_k=None, "
    "Tensor? offset_v=None, "
)


@npu_op(f"npu_rope_quant_kvcache{_HEAD}{_TAIL}", chips=("A2", "A3"), ge="DequantRopeQuantKvcache")
def npu_rope_quant_kvcache(
    x,
    cos,
    sin,
    k_cache,
    v_cache,
    indices,
    scale_k,
    scale_v,
    size_splits,
    offset_k,
    offset_v,
    kv_output,
    cache_mode,
):
    r"""Splits x into query, key and value, rotates the first two, and writes key and value into int8 caches.

    $$ (q, k, v) = \mathrm{split}(x), \quad q' = \mathrm{rope}(q), \quad k' = \mathrm{rope}(k), \quad
       cache = \mathrm{round}(k' / scale + offset) $$

    Args:
        x: (B, S, H) or (B, H), H = (Nq + 2 Nkv) D; float16 or bfloat16.
        cos: (B, S, 1, D), or (B, D) for two dimensions, of the dtype of `x`; each element turns with the one D/2 away.
        sin: as `cos`.
        k_cache: (C1, C2, Nkv, D), int8, D a multiple of 16; written.
        v_cache: as `k_cache`.
        indices: int32: (B,), where in its sequence each row of the caches begins; with cache_mode "page" (B S,), the
            position of each token in all pages.
        scale_k: float32, Nkv D elements: what keys are divided by.
        scale_v: the same for values.
        size_splits: [Nq D, Nkv D, Nkv D].
        offset_k: float32, Nkv D elements, added before rounding; both or none.
        offset_v: the same for values.
        quant_mode: 0, static.
        input_layout: "BSND".
        kv_output: whether k' and v are returned.
        cache_mode: "contiguous": caches (B or more, length, Nkv, D); "page".

    Returns:
        q' (B, S, Nq, D) or (B, Nq, D), k' and v with Nkv heads, or empty, and the caches.

    Upstream's schema does not declare the mutation of the caches, so neither does this one.
    """
    found = _update(
        x.float(), cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v,
        kv_output, cache_mode,
    )  # fmt: skip
    return *found, k_cache, v_cache


def _check(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, quant_mode,
    input_layout, cache_mode,
):  # fmt: skip
    must.ndim("x", x, 2, 3)
    must.hold(len(size_splits) == 3, "size_splits", "of length 3", list(size_splits))
    width = x.shape[-1]
    fits = sum(size_splits) == width and min(size_splits) >= 0
    must.hold(fits, "size_splits", f"three sizes of {width} together", list(size_splits))
    must.unset("quant_mode", quant_mode, 0)
    must.choice("input_layout", input_layout, ("BSND",))
    must.choice("cache_mode", cache_mode, ("contiguous", "page"))
    must.dtype("cos", cos, *_HALF)
    must.same_dtype("sin", sin, "cos", cos)
    must.dtype("k_cache", k_cache, torch.int8)
    must.ndim("k_cache", k_cache, 4)
    must.dtype("v_cache", v_cache, torch.int8)
    must.shape("v_cache", v_cache, tuple(k_cache.shape))
    heads, size = k_cache.shape[2:]
    must.hold(size > 0 and size % 16 == 0, "k_cache", "of a last size divisible by 16", size)
    fits = list(size_splits[1:]) == [heads * size] * 2 and size_splits[0] % size == 0
    expected = f"a multiple of {size}, {heads * size}, {heads * size}"
    must.hold(fits, "size_splits", expected, list(size_splits))
    batch, length = x.shape[0], x.shape[1] if x.dim() == 3 else 1
    angles = (batch, size) if x.dim() == 2 else (batch, length, 1, size)
    must.shape("cos", cos, angles)
    must.shape("sin", sin, angles)
    paged = cache_mode == "page"
    must.dtype("indices", indices, torch.int32)
    must.shape("indices", indices, (batch * length,) if paged else (batch,))
    if not paged:
        fits = k_cache.shape[0] >= batch
        must.hold(fits, "k_cache", f"of at least {batch} sequences", k_cache.shape[0])
    for name, tensor in (
        ("scale_k", scale_k),
        ("scale_v", scale_v),
        ("offset_k", offset_k),
        ("offset_v", offset_v),
    ):
        if tensor is not None:
            must.dtype(name, tensor, torch.float32)
            fits = tensor.numel() == heads * size
            must.hold(fits, name, f"of {heads * size} elements", tuple(tensor.shape))
    both = (offset_k is None) == (offset_v is None)
    must.hold(both, "offset_v", "given with 'offset_k', and only then", offset_v is not None)
    if must.has_data(indices) and indices.numel():
        most = k_cache.shape[0] * k_cache.shape[1] if paged else k_cache.shape[1] - length + 1
        low, high = int(indices.min()), int(indices.max())
        must.hold(low >= 0 and high < most, "indices", f"in [0, {most})", f"{low} to {high}")


@npu_rope_quant_kvcache.check
def _(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, quant_mode,
    input_layout, cache_mode,
):  # fmt: skip
    must.dtype("x", x, *_HALF)
    must.same_dtype("cos", cos, "x", x)
    _check(
        x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, quant_mode,
        input_layout, cache_mode,
    )  # fmt: skip


def _shapes(x, cos, k_cache, v_cache, size_splits, kv_output):
    heads, size = k_cache.shape[2:]
    q = cos.new_empty((*x.shape[:-1], size_splits[0] // size, size))
    shape = (*x.shape[:-1], heads, size) if kv_output else (0,)
    caches = torch.empty_like(k_cache), torch.empty_like(v_cache)
    return q, cos.new_empty(shape), cos.new_empty(shape), *caches


npu_rope_quant_kvcache.meta(_shapes)


@npu_op(
    f"npu_dequant_rope_quant_kvcache{_HEAD}Tensor? weight_scale=None, "
    f"Tensor? activation_scale=None, Tensor? bias=None, {_TAIL}",
    chips=("A2", "A3"),
    ge="DequantRopeQuantKvcache",
)
def npu_dequant_rope_quant_kvcache(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, weight_scale,
    activation_scale, bias, kv_output, cache_mode,
):  # fmt: skip
    r"""`npu_rope_quant_kvcache` of integer sums, brought back to floats first.

    $$ x' = (x + bias_{int32}) \cdot weight \cdot activation + bias_{float} $$

    Args:
        x: as in `npu_rope_quant_kvcache`, int32.
        cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, quant_mode, input_layout,
            kv_output, cache_mode: as there; the results have the dtype of `cos`.
        weight_scale: (H,), float32; required.
        activation_scale: (B S,) or (B,), float32.
        bias: (H,); int32 is added before the scales, float32, float16 and bfloat16 after them.

    Returns:
        As `npu_rope_quant_kvcache`.

    Upstream's schema does not declare the mutation of the caches, so neither does this one.
    """
    value = x + bias if bias is not None and bias.dtype == torch.int32 else x
    value = value.float() * weight_scale
    if activation_scale is not None:
        value = value * activation_scale.reshape(*x.shape[:-1], 1)
    if bias is not None and bias.dtype != torch.int32:
        value = value + bias.float()
    found = _update(
        value, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k,
        offset_v, kv_output, cache_mode,
    )  # fmt: skip
    return *found, k_cache, v_cache


@npu_dequant_rope_quant_kvcache.check
def _(
    x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, weight_scale,
    activation_scale, bias, quant_mode, input_layout, cache_mode,
):  # fmt: skip
    must.dtype("x", x, torch.int32, upstream="x dtype should be Int32")
    _check(
        x, cos, sin, k_cache, v_cache, indices, scale_k, scale_v, size_splits, offset_k, offset_v, quant_mode,
        input_layout, cache_mode,
    )  # fmt: skip
    must.present("weight_scale", weight_scale, "(the scales of the columns)")
    must.dtype("weight_scale", weight_scale, torch.float32)
    must.shape("weight_scale", weight_scale, (x.shape[-1],))
    must.dtype("activation_scale", activation_scale, torch.float32)
    must.shape("activation_scale", activation_scale, (x.shape[:-1].numel(),))
    must.dtype("bias", bias, torch.float32, *_HALF, torch.int32)
    must.shape("bias", bias, (x.shape[-1],))


npu_dequant_rope_quant_kvcache.meta(_shapes)


def _inputs(make, x, *angles, dtype=torch.float16, count=2):
    cache = [make(3, 8, 1, 16, dtype=torch.int8, low=-9, high=9, seed=s) for s in (1, 2)]
    places = torch.arange(count, dtype=torch.int32).to(x.device)
    scales = [make(16, low=0.1, high=0.5, seed=s) for s in (3, 4)]
    return (
        x,
        *(make(*angles, dtype=dtype, seed=s) for s in (5, 6)),
        *cache,
        places,
        *scales,
        [32, 16, 16],
    )


npu_rope_quant_kvcache.samples = [
    Sample(lambda make: _inputs(make, make(2, 3, 64, dtype=torch.float16), 2, 3, 1, 16)),
    Sample(
        lambda make: _inputs(make, make(2, 64, dtype=torch.bfloat16), 2, 16, dtype=torch.bfloat16),
        lambda make: {"offset_k": make(16), "offset_v": make(16), "kv_output": True, "cache_mode": "page"},
    ),
]  # fmt: skip
npu_dequant_rope_quant_kvcache.samples = [
    Sample(
        lambda make: _inputs(make, make(2, 3, 64, dtype=torch.int32, low=-99, high=99), 2, 3, 1, 16),
        lambda make: {"weight_scale": make(64), "activation_scale": make(6), "bias": make(64), "kv_output": True},
    ),
    Sample(
        lambda make: _inputs(make, make(2, 64, dtype=torch.int32, low=-99, high=99), 2, 16),
        lambda make: {"weight_scale": make(64), "bias": make(64, dtype=torch.int32, low=-9, high=9)},
    ),
]  # fmt: skip
