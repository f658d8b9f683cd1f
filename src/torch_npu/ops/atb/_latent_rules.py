"""The constraints of npu_multi_head_latent_attention."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops._shared._pages import nz_width
from torch_npu.ops.atb._latent import (
    CACHE_MODES,
    CALC_TYPES,
    LATENT,
    MASK_TYPES,
    ROPE,
    LatentArguments,
)

#: the query heads that ATB's kernel has
HEADS = (8, 16, 32, 64, 128)


def check(call: LatentArguments) -> None:
    """What all forms of npu_multi_head_latent_attention ask."""
    rules.family("q_nope", "A2", "A3")
    must.choice("mask_type", call.mask_type, (*MASK_TYPES, None))
    must.choice("calc_type", call.calc_type, (*CALC_TYPES, None))
    must.choice("cache_mode", call.cache_mode, (*CACHE_MODES, None))
    must.choice("q_headnum", call.q_headnum, HEADS)
    must.hold(call.kv_headnum == 1, "kv_headnum", "1", call.kv_headnum)
    must.hold(0 < call.qk_scale <= 1, "qk_scale", "above 0 and at most 1", call.qk_scale)
    must.dtype("q_rope", call.q_rope, *rules.FLOATS)
    int8 = call.mode == "int8_nzcache"
    kind = torch.int8 if int8 else call.q_rope.dtype
    must.dtype("q_nope", call.q_nope, kind)
    must.dtype("ctkv", call.ctkv, kind)
    must.same_dtype("k_rope", call.k_rope, "q_rope", call.q_rope)
    must.shape("q_nope", call.q_nope, (None, call.q_headnum, LATENT))
    must.shape("q_rope", call.q_rope, (call.q_nope.shape[0], call.q_headnum, ROPE))
    _check_caches(call)
    for name, scale in (("qk_descale", call.qk_descale), ("pv_descale", call.pv_descale)):
        if int8:
            must.present(name, scale, "with cache_mode 'int8_nzcache'")
            must.dtype(name, scale, torch.float32)
            must.shape(name, scale, (call.q_headnum,))
    _check_lengths(call)


def _check_caches(call: LatentArguments) -> None:
    for name, cache, size in (("ctkv", call.ctkv, LATENT), ("k_rope", call.k_rope, ROPE)):
        if call.mode == "krope_ctkv":
            must.shape(name, cache, (None, None, call.kv_headnum, size))
        else:
            c = nz_width(cache)
            must.shape(name, cache, (None, call.kv_headnum * size // c, None, c))
    axis = 1 if call.mode == "krope_ctkv" else 2
    blocks, block = call.ctkv.shape[0], call.ctkv.shape[axis]
    must.hold(block == 128, "ctkv", "of 128 tokens a block", block)
    same = (call.k_rope.shape[0], call.k_rope.shape[axis]) == (blocks, block)
    expected = f"of {blocks} blocks of {block} tokens, as 'ctkv'"
    must.hold(same, "k_rope", expected, tuple(call.k_rope.shape))


def _check_lengths(call: LatentArguments) -> None:
    batch, tokens = len(call.context_lens), call.q_nope.shape[0]
    must.hold(batch <= 8192, "context_lens", "of at most 8192 sequences", batch)
    rules.table(call.block_tables, batch, "block_tables", exact=True)
    rules.lengths("context_lens", call.context_lens)
    spec = call.calc_type == "calc_type_spec"
    if spec:
        lengths = must.present("qseqlen", call.qseqlen, "with calc_type 'calc_type_spec'")
        expected = f"of {batch} lengths, as 'context_lens'"
        must.hold(len(lengths) == batch, "qseqlen", expected, len(lengths))
        rules.lengths("qseqlen", lengths, tokens)
    else:
        plain = call.mask_type in (None, "undefined")
        expected = "left out but with calc_type 'calc_type_spec'"
        must.hold(plain, "mask_type", expected, call.mask_type)
        must.hold(batch == tokens, "context_lens", f"of {tokens} sequences, one a token", batch)
    if call.mask_type == "mask_type_spec":
        mask = must.present("mask", call.mask, "with mask_type 'mask_type_spec'")
        must.same_dtype("mask", mask, "q_rope", call.q_rope)
        must.ndim("mask", mask, 2)
        known = rules.lengths("context_lens", call.context_lens) or [0]
        expected = f"of at least {tokens} rows and {max(known)} columns"
        fits = mask.shape[0] >= tokens and mask.shape[1] >= max(known)
        must.hold(fits, "mask", expected, tuple(mask.shape))
