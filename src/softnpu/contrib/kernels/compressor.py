"""The compressor (DeepSeek-V4): one cached token for each group of tokens."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels._definition import Definition
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.rope._rotate import rotate

__all__ = ["compressor"]

INTERLEAVED = 2


@Definition
def compressor(
    x,
    wkv,
    wgate,
    state_cache,
    ape,
    norm_weight,
    rope_sin,
    rope_cos,
    state_block_table,
    cu_seqlens,
    seqused,
    start_pos,
    rope_head_dim,
    cmp_ratio,
    coff,
    norm_eps,
):
    r"""For each group of tokens that a sequence completes: a sum weighted by a softmax over them, its norm, its rotation.

    Token p has the values $x_p W_{kv}^T$ and the scores $x_p W_{gate}^T + ape_{p \bmod ratio}$, both of coff * D
    channels; the softmax is over the tokens, for each channel. With coff 2 a group reaches over the one before it, which
    counts with its first D channels, the group itself with the last D. `state_cache` (blocks, block, 2 * coff * D) keeps
    values and scores of the tokens by position; nothing is kept in block 0. Rows that no group fills are 0.
    """
    out = _shape(x, norm_weight, rope_sin)
    rows, width = out.view(-1, out.shape[-1]), norm_weight.shape[0]
    cos, sin = (wide(t).reshape(-1, t.shape[-1]) for t in (rope_cos, rope_sin))
    flat = wide(x).reshape(-1, x.shape[-1])
    values, scores = flat @ wide(wkv).t(), flat @ wide(wgate).t()
    row = 0
    for index, (first, length) in enumerate(_sequences(x, cu_seqlens, seqused)):
        start = 0 if start_pos is None else int(start_pos[index])
        part = slice(first, first + length)
        place = torch.arange(start, start + length)
        state = torch.cat((values[part], scores[part] + wide(ape)[place % cmp_ratio]), 1)
        table = state_block_table[index].tolist()
        _keep(state_cache, table, start, state)
        row = index * out.shape[1] if x.dim() == 3 else row
        for group in range(start // cmp_ratio, (start + length) // cmp_ratio):
            begin = group * cmp_ratio
            tokens = [_token(state_cache, table, p, start, state) for p in range(max(
                0, begin - (coff - 1) * cmp_ratio), begin + cmp_ratio)]  # fmt: skip
            value, score = torch.stack(tokens).view(len(tokens), 2, coff, width).unbind(1)
            own = slice(len(tokens) - cmp_ratio, None)
            value = torch.cat((value[: own.start, 0], value[own, -1]))
            score = torch.cat((score[: own.start, 0], score[own, -1]))
            found = (score.softmax(0) * value).sum(0)
            found = found * torch.rsqrt(found.square().mean() + norm_eps) * wide(norm_weight)
            turned = rotate(found[None, -rope_head_dim:], cos[row : row + 1], sin[row : row + 1],
                            "interleave")[0]  # fmt: skip
            rows[row] = torch.cat((found[:-rope_head_dim], turned)).to(out.dtype)
            row += 1
    return out


def _sequences(x, cu_seqlens, seqused):
    """(first row, rows that count) of each sequence."""
    if x.dim() == 3:
        found = [(b * x.shape[1], x.shape[1]) for b in range(x.shape[0])]
    else:
        bounds = cu_seqlens.tolist()
        found = [(a, b - a) for a, b in zip(bounds, bounds[1:], strict=False)]
    if seqused is None:
        return found
    return [(first, used) for (first, _), used in zip(found, seqused.tolist(), strict=True)]


def _keep(cache, table, start, state):
    block = cache.shape[1]
    for offset, token in enumerate(state):
        page = table[(start + offset) // block]
        if page:
            cache[page, (start + offset) % block] = token


def _token(cache, table, place, start, state):
    """Values and scores of a token of this step, or of one before it."""
    if place >= start:
        return state[place - start]
    return cache[table[place // cache.shape[1]], place % cache.shape[1]]


def _shape(x, norm_weight, rope_sin):
    return x.new_zeros(*rope_sin.shape[:-1], norm_weight.shape[0])


@compressor.meta
def _(x, norm_weight, rope_sin):
    return _shape(x, norm_weight, rope_sin)


@compressor.check
def _(
    x,
    wkv,
    wgate,
    state_cache,
    ape,
    norm_weight,
    rope_sin,
    rope_cos,
    state_block_table,
    cu_seqlens,
    seqused,
    start_pos,
    rope_head_dim,
    cmp_ratio,
    coff,
    norm_eps,
    rotary_mode,
    cache_mode,
):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2, 3)
    must.choice("coff", coff, (1, 2))
    must.choice("cache_mode", cache_mode, (1,))
    must.choice("rotary_mode", rotary_mode, (INTERLEAVED,))
    must.hold(cmp_ratio > 0, "cmp_ratio", "positive", cmp_ratio)
    must.hold(norm_eps >= 0, "norm_eps", "not negative", norm_eps)
    must.ndim("norm_weight", norm_weight, 1)
    width = norm_weight.shape[0]
    fits = 0 < rope_head_dim <= width and rope_head_dim % 2 == 0
    must.hold(fits, "rope_head_dim", f"even, from 2 to {width}", rope_head_dim)
    for name, weight in (("wkv", wkv), ("wgate", wgate)):
        must.same_dtype(name, weight, "x", x)
        must.shape(name, weight, (coff * width, x.shape[-1]))
    for name, tensor, shape in (
        ("ape", ape, (cmp_ratio, coff * width)),
        ("state_cache", state_cache, (None, None, 2 * coff * width)),
    ):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, shape)
    must.ndim("rope_sin", rope_sin, x.dim())
    must.shape("rope_sin", rope_sin, (*(None,) * (x.dim() - 1), rope_head_dim))
    must.shape("rope_cos", rope_cos, tuple(rope_sin.shape))
    must.present("state_block_table", state_block_table, "always")
    must.ndim("state_block_table", state_block_table, 2)
    if x.dim() == 2:
        must.present("cu_seqlens", cu_seqlens, "with 'x' of 2 dimensions")
    else:
        must.unset("cu_seqlens", cu_seqlens)
    batch = x.shape[0] if x.dim() == 3 else cu_seqlens.shape[0] - 1
    for name, tensor in (("seqused", seqused), ("start_pos", start_pos)):
        must.dtype(name, tensor, torch.int32)
        must.shape(name, tensor, (batch,))
