"""Multi-head latent attention: the queries and cache entries of decoding tokens in one operator."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared._pages import nz_width, write
from torch_npu.ops.atb.npu_mla_preprocess import _factors, _int8, _plain, _rotate

__all__ = ["check_preprocess", "norm", "preprocess"]

#: of all norms
EPSILON = 1e-6
FUSED, INT8_NZ, NZ = "kvcache", "int8_nzcache", "nzcache"
STATIC, DYNAMIC, PLAIN = "per_tensor_quant_asymm", "per_token_quant_symm", "no_quant"
_HALVES = (torch.float16, torch.bfloat16)


def preprocess(
    x,
    dtype,
    wdqkv,
    descale0,
    gamma1,
    beta1,
    wuq,
    descale1,
    gamma2,
    cos,
    sin,
    wuk,
    slotmapping,
    quant_scale0,
    quant_offset0,
    bias0,
    quant_scale1,
    quant_offset1,
    bias1,
    ctkv_scale,
    q_nope_scale,
    cache_mode,
    quant_mode,
    q_out0,
    kv_cache_out0,
    q_out1,
    kv_cache_out1,
    inner_out=None,
):
    r"""[c, r, d] = x W_dqkv, [q_n, q_r] = norm(d) W_uq for each head; writes norm(c), rope(r), q_n W_uk, rope(q_r).

    x is normalized, and may be wider than `dtype`, to which the rest rounds. `inner_out` receives norm(d). Without cos
    and sin nothing is rotated.
    """
    mode = quant_mode or DYNAMIC
    heads, nope, latent = wuk.shape
    rope = q_out1.shape[-1]
    down = _product(x, mode, quant_scale0, quant_offset0, _plain(wdqkv), descale0, bias0).to(dtype)
    c, r, d = down.split((latent, rope, down.shape[1] - latent - rope), 1)
    key = norm(c, gamma2)
    if cache_mode == INT8_NZ:
        key = _int8(key / wide(ctkv_scale))
    turned = r if cos is None else _rotate(wide(r), wide(cos), wide(sin)).to(dtype)
    if cache_mode == FUSED:
        rows = torch.cat((key.to(dtype), turned), 1)
        write(kv_cache_out0, slotmapping, rows)
    else:
        nz = cache_mode in (INT8_NZ, NZ)
        key = key if cache_mode == INT8_NZ else key.to(dtype)
        write(_pages(kv_cache_out0, nz), slotmapping, key, nz)
        write(_pages(kv_cache_out1, nz), slotmapping, turned, nz)
    inner = norm(d, gamma1)
    inner = inner if beta1 is None else inner + wide(beta1)
    if inner_out is not None:
        inner_out.copy_(inner.to(dtype).view(inner_out.shape))
    inner = inner.to(dtype) if mode == PLAIN else inner
    up = _product(inner, mode, quant_scale1, quant_offset1, _plain(wuq), descale1, bias1)
    up = up.to(dtype).view(-1, heads, nope + rope)
    query = (wide(up[..., :nope]).transpose(0, 1) @ wide(wuk)).transpose(0, 1).to(dtype)
    if cache_mode == INT8_NZ:
        query = _int8(wide(query) / wide(q_nope_scale).view(-1, 1))
    q_out0.copy_(query.reshape(q_out0.shape))
    turned = up[..., nope:]
    if cos is not None:
        turned = _rotate(wide(turned), wide(cos).unsqueeze(1), wide(sin).unsqueeze(1)).to(dtype)
    q_out1.copy_(turned.reshape(q_out1.shape))


def norm(x, gamma):
    x = wide(x)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * wide(gamma)


def _product(x, mode, scale, offset, weight, descale, bias):
    """x times the transpose of the weight in float32, through int8 unless the mode says otherwise."""
    if mode == PLAIN:
        return wide(x) @ wide(weight).t()
    x, step = wide(x), None
    if mode == DYNAMIC:
        step = x.abs().amax(1, keepdim=True) / 127
        rows = _int8(x / step.masked_fill(step == 0, 1))
    else:
        rows = _int8(x / wide(scale) + wide(offset))
    found = rows.double() @ weight.double().t()
    if mode == STATIC and bias is not None:
        found = found + bias.view(-1)
    found = found.float() * _factors(descale).view(-1)
    return found if step is None else found * step


def _pages(cache, nz):
    """The physical shape of an NZ cache, (blocks, D / c, block, c), of one declared as (blocks, block, 1, D)."""
    if not nz or cache.dim() == 4 and cache.shape[2] != 1:
        return cache
    blocks, block, width, c = cache.shape[0], cache.shape[1], cache.shape[-1], nz_width(cache)
    flat = cache.flatten(1)
    return flat.view(blocks, width // c, block, c)


def check_preprocess(
    hiddenState,
    wdqkv,
    gamma1,
    wuq,
    gamma2,
    cos,
    sin,
    wuk,
    slotmapping,
    cache_mode,
    quant_mode,
    q_out0,
    kv_cache_out0,
    q_out1,
    **rest,
):
    must.dtype("hiddenState", hiddenState, *_HALVES)
    must.ndim("hiddenState", hiddenState, 2)
    tokens = hiddenState.shape[0]
    must.hold(1 <= tokens <= 1024, "hiddenState", "of 1 to 1024 tokens", tokens)
    must.ndim("wuk", wuk, 3)
    heads, nope, latent = wuk.shape
    rope, lora = q_out1.shape[-1], gamma1.shape[0]
    must.shape("gamma2", gamma2, (latent,))
    together = (cos is None) == (sin is None)
    must.hold(together, "sin", "given if and only if 'cos' is", None if sin is None else "a tensor")
    for name, tensor in (("cos", cos), ("sin", sin)):
        fits = tensor is None or tensor.numel() == tokens * rope
        must.hold(fits, name, f"of {tokens} rows of {rope}", tensor)
    quantized = quant_mode != PLAIN
    for name, weight, rows, columns in (
        ("wdqkv", wdqkv, latent + rope + lora, hiddenState.shape[1]),
        ("wuq", wuq, heads * (nope + rope), lora),
    ):
        must.dtype(name, weight, torch.int8 if quantized else hiddenState.dtype)
        width = nz_width(weight)
        plain = (rows, columns) if weight.dim() == 2 else (1, columns // width, rows, width)
        must.shape(name, weight, plain)
    must.dtype("slotmapping", slotmapping, torch.int32)
    must.shape("slotmapping", slotmapping, (tokens,))
    int8 = cache_mode == INT8_NZ
    must.dtype("kv_cache_out0", kv_cache_out0, torch.int8 if int8 else hiddenState.dtype)
    fits = q_out0.numel() == tokens * heads * latent
    must.hold(fits, "q_out0", f"of {tokens} x {heads} x {latent} elements", tuple(q_out0.shape))
    _check_scales(quantized, quant_mode, int8, hiddenState, rest)


def _check_scales(quantized, quant_mode, int8, hiddenState, given):
    names: tuple[str, ...] = ("descale0", "descale1") if quantized else ()
    if quant_mode == STATIC:
        names += ("quant_scale0", "quant_offset0", "quant_scale1", "quant_offset1")
    for name in names:
        must.present(name, given[name], f"with quant_mode {quant_mode!r}")
    if quantized and quant_mode != STATIC:
        bf16 = hiddenState.dtype == torch.bfloat16
        must.hold(bf16, "hiddenState", "of dtype bfloat16 for this quant_mode", hiddenState.dtype)
    for name in ("ctkv_scale", "q_nope_scale") if int8 else ():
        must.present(name, given[name], f"with cache_mode {INT8_NZ!r}")
