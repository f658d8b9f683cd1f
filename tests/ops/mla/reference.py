"""The MLA prolog in fp64, token by token, and small inputs for it (constraints off)."""

from __future__ import annotations

import copy
import functools
import math
from types import SimpleNamespace

import torch

from tests.ops.support import make
from torch_npu.ops._shared._formats import hifloat8_values

NAMES = [
    "token_x",
    "weight_dq",
    "weight_uq_qr",
    "weight_uk",
    "weight_dkv_kr",
    "rmsnorm_gamma_cq",
    "rmsnorm_gamma_ckv",
    "rope_sin",
    "rope_cos",
    "cache_index",
    "kv_cache",
    "kr_cache",
]


def arguments(
    tokens=(5,),
    heads=2,
    he=64,
    hcq=32,
    hckv=32,
    d=16,
    dr=8,
    dtype=torch.float32,
    int8=(),
    blocks=3,
    size=4,
):
    """A namespace of arguments; the names in `int8` are quantized. Slots are distinct."""
    shapes = {
        "token_x": (*tokens, he),
        "weight_dq": (he, hcq),
        "weight_uq_qr": (hcq, heads * (d + dr)),
        "weight_uk": (heads, d, hckv),
        "weight_dkv_kr": (he, hckv + dr),
        "rmsnorm_gamma_cq": (hcq,),
        "rmsnorm_gamma_ckv": (hckv,),
        "rope_sin": (*tokens, dr),
        "rope_cos": (*tokens, dr),
        "kv_cache": (blocks, size, 1, hckv),
        "kr_cache": (blocks, size, 1, dr),
    }
    found = SimpleNamespace()
    for seed, (name, shape) in enumerate(shapes.items()):
        if name in int8:
            value = make(*shape, dtype=torch.int8, low=-100, high=100, seed=seed)
        else:
            value = make(*shape, dtype=dtype, seed=seed)
        setattr(found, name, value)
    count = torch.Size(tokens).numel()
    slots = torch.randperm(blocks * size, generator=torch.Generator().manual_seed(1))[:count]
    found.cache_index = slots.view(tokens).to(found.token_x.device)
    return found


@functools.cache
def _documented(tokens, int8, he):
    sizes = {"he": he, "hcq": 1536, "hckv": 512, "d": 128, "dr": 64, "blocks": 1, "size": 16}
    return arguments(tokens=tokens, heads=1, dtype=torch.bfloat16, int8=int8, **sizes)


def documented(tokens=(2, 1), int8=(), he=7168):
    """Arguments of sizes that the pages allow, with caches of their own."""
    found = copy.copy(_documented(tokens, int8, he))
    found.kv_cache, found.kr_cache = found.kv_cache.clone(), found.kr_cache.clone()
    return found


def positional(a):
    """The arguments in the order of the schemas."""
    return [getattr(a, name) for name in NAMES]


def scales(a, *names):
    """Keyword arguments: the named scales, of the sizes that the arguments ask for."""
    count = a.token_x.shape[:-1].numel()
    sizes = {
        "dequant_scale_x": (count, 1, 0.01),
        "dequant_scale_w_dq": (1, a.weight_dq.shape[1], 0.01),
        "dequant_scale_w_uq_qr": (1, a.weight_uq_qr.shape[1], 0.01),
        "dequant_scale_w_dkv_kr": (1, a.weight_dkv_kr.shape[1], 0.01),
        "quant_scale_ckv": (1, a.weight_uk.shape[2], 40.0),
        "quant_scale_ckr": (1, a.rope_sin.shape[-1], 20.0),
        "smooth_scales_cq": (1, a.weight_dq.shape[1], 1.0),
    }
    found = {}
    for seed, name in enumerate(names):
        rows, columns, top = sizes[name]
        found[name] = make(rows, columns, low=top / 2, high=top, seed=100 + seed)
    return found


def rotated(v, sin, cos):
    """Pairs (v0, v1), (v2, v3), ...: firsts to the front half, seconds to the back, rotated."""
    half = v.shape[0] // 2
    out = torch.zeros_like(v)
    for i in range(half):
        first, second = v[2 * i], v[2 * i + 1]
        out[i] = first * cos[i] - second * sin[i]
        out[half + i] = second * cos[half + i] + first * sin[half + i]
    return out


def normed(v, gamma, epsilon):
    return v / torch.sqrt((v * v).mean() + epsilon) * gamma


TOP = {"int8": 127.0, "float8_e4m3fn": 448.0, "hifloat8": 32768.0}


def low(v, form):
    """The values of v in a low-precision format."""
    if form == "int8":
        return v.round().clamp(-128, 127)
    if form == "float8_e4m3fn":
        return v.clamp(-448, 448).to(torch.float8_e4m3fn).double()
    grid = sorted({x for x in hifloat8_values() if math.isfinite(x)})
    return torch.tensor([min(grid, key=lambda g, x=x: abs(g - x)) for x in v.tolist()]).double()


def microscaled(v):
    """v in groups of 32, each in float8_e4m3fn times a power of two."""
    out = torch.zeros_like(v)
    for i in range(0, v.shape[0], 32):
        step = 2.0 ** (math.floor(math.log2(v[i : i + 32].abs().max())) - 8)
        out[i : i + 32] = low(v[i : i + 32] / step, "float8_e4m3fn") * step
    return out


def projected(v, weight, s, form):
    """c^Q times the query's weights, in the form that the scales `s` ask for; and c^Q itself."""
    if form == "mx":
        rows = microscaled(v.bfloat16().double())
        return rows @ weight, rows
    if "dequant_scale_w_uq_qr" not in s:
        return v @ weight, v
    smooth = v * s["smooth_scales_cq"][0] if "smooth_scales_cq" in s else v
    step = smooth.abs().max() / TOP[form]
    rows = low(smooth / step, form)
    return (rows @ weight) * step * s["dequant_scale_w_uq_qr"][0], rows


def prolog(a, eps_cq=1e-5, eps_ckv=1e-5, qc=1.0, kc=1.0, form="int8", values=None, **given):
    """query, query_rope (T, N, ..), keys, rope keys (T, ..), query scales (T, N) and c^Q (T, Hcq).

    `form` is the low-precision format; "mx" takes de-quantized tensors by name in `values`.
    """
    v = SimpleNamespace(**{n: getattr(a, n).cpu() for n in NAMES if n != "cache_index"})
    v.__dict__.update(values or {})
    v = SimpleNamespace(**{n: t.double() for n, t in v.__dict__.items()})
    s = {n: t.cpu().double() for n, t in given.items() if t is not None}
    kind = "float8_e4m3fn" if form == "mx" else form
    quantizes_query = a.token_x.dtype.itemsize == 1 and "quant_scale_ckv" in s
    heads, d, hckv = v.weight_uk.shape
    x = v.token_x.flatten(0, -2)
    sin, cos = v.rope_sin.flatten(0, -2), v.rope_cos.flatten(0, -2)
    rows = []
    for t in range(x.shape[0]):
        down, kv = x[t] @ v.weight_dq, x[t] @ v.weight_dkv_kr
        if "dequant_scale_x" in s:
            down = down * s["dequant_scale_x"][t] * s["dequant_scale_w_dq"][0]
            kv = kv * s["dequant_scale_x"][t] * s["dequant_scale_w_dkv_kr"][0]
        cq = normed(down, v.rmsnorm_gamma_cq, eps_cq) * qc
        up, cq = projected(cq, v.weight_uq_qr, s, form)
        up = up.view(heads, -1)
        query = torch.stack([up[n, :d] @ v.weight_uk[n] for n in range(heads)])
        rope = torch.stack([rotated(up[n, d:], sin[t], cos[t]) for n in range(heads)])
        step = query.abs().amax(-1) / TOP[kind]
        if quantizes_query:
            query = torch.stack([low(q / z, kind) for q, z in zip(query, step, strict=True)])
            rope = rope * s["quant_scale_ckv"].flatten()[0] / step[:, None]
        key = normed(kv[:hckv], v.rmsnorm_gamma_ckv, eps_ckv) * kc
        rope_key = rotated(kv[hckv:], sin[t], cos[t])
        if "quant_scale_ckv" in s:
            scale = s["quant_scale_ckv"].flatten()
            key = low(key * (scale[0] if quantizes_query else scale), kind)
        if "quant_scale_ckr" in s:
            rope_key = low(rope_key * s["quant_scale_ckr"][0], "int8")
        rows.append((query, rope, key, rope_key, step, cq))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def cached(before, rows, index, mode="PA_BSND"):
    """The cache after `rows` were written; with PA_NZ through the order of a block's bytes."""
    cache = before.cpu().clone()
    blocks, size, _, width = cache.shape
    strip = 32 // cache.element_size()
    flat = cache.view(blocks, size * width)
    for row, slot in zip(rows, index.cpu().flatten().tolist(), strict=True):
        if slot < 0:
            continue
        block, place = divmod(slot, size)
        for column in range(width):
            if mode == "PA_NZ":
                at = (column // strip) * size * strip + place * strip + column % strip
            else:
                at = place * width + column
            flat[block, at] = row[column]
    return cache
