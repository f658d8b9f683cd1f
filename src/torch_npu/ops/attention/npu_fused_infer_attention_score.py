"""npu_fused_infer_attention_score, its workspace and out forms: attention over caches."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._engine import in_blocks, natively
from torch_npu.ops.attention import _infer_float_rules as floats
from torch_npu.ops.attention import _infer_latent_rules as latent
from torch_npu.ops.attention import _infer_mask_rules as masks
from torch_npu.ops.attention import _infer_quant_rules as quantized
from torch_npu.ops.attention import _infer_rules as rules
from torch_npu.ops.attention import _out
from torch_npu.ops.attention._infer import solve
from torch_npu.ops.attention._infer_arguments import (
    ALL,
    BAND,
    DEFAULT,
    LEFT_UP,
    RIGHT_DOWN,
    TREE,
    InferArguments,
    empty_outputs,
)
from torch_npu.ops.attention._infer_once import once
from torch_npu.ops.attention._infer_small_rules import small_floats

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? "
    "atten_mask=None, SymInt[]? actual_seq_lengths=None, SymInt[]? "
    "actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, Tensor? quant_scale1=None, "
    "Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? "
    "key_antiquant_scale=None, Tensor? key_antiquant_offset=None, Tensor? "
    "value_antiquant_scale=None, Tensor? value_antiquant_offset=None, Tensor? "
    "block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, SymInt[]? "
    "actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, Tensor? "
    "key_rope_antiquant_scale=None, int num_heads=1, float scale=1.0, int "
    'pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", int '
    "num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, int "
    "antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0, bool "
    "softmax_lse_flag=False"
)

_SCHEMA = f"npu_fused_infer_attention_score({_ARGUMENTS}) -> (Tensor, Tensor)"


def _check(call: InferArguments) -> None:
    rules.product(call, "A2", "A3", "A5")
    rules.layout(call)
    scaled = small_floats(call)
    if not scaled:
        must.dtype("query", call.query, *rules.FLOATS, torch.int8)
        must.dtype("key", call.key, *rules.CACHES)
    plain = floats.plain(call)
    rules.heads(call, limited=not plain)
    rules.caches(call, limited=not plain)
    if plain:
        floats.heads(call)
    else:
        rules.extents(call, align=8)
    rules.lengths(call)
    if plain:
        floats.totals(call)
    rules.paged(call, floats.block_size)
    rules.padding(call)
    rules.padded_lengths(call)
    rules.prefix(call)
    masks.mask(call, (DEFAULT, ALL, LEFT_UP, RIGHT_DOWN, BAND, TREE))
    masks.bias(call)
    must.choice("inner_precise", call.inner_precise, range(4))
    quantized.integers(call)
    quantized.output(call)
    if not scaled:
        quantized.cache(call)
    latent.latent(call)
    latent.ragged(call)
    must.unset("key_rope_antiquant_scale", call.key_rope_antiquant_scale)


def _sample(**options):
    return {"num_heads": 4, "num_key_value_heads": 2, "scale": 0.25, **options}


def _paged(make):
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32).to(make(1).device)
    return _sample(
        input_layout="BSH", actual_seq_lengths_kv=[20, 32], block_table=table, block_size=16
    )


@npu_op(_SCHEMA, core="MIX_AIC")
def npu_fused_infer_attention_score(query, key, value, **options):
    r"""Attention for inference: prompts (many query tokens) and decoding (one token over a cache).

    $$ y = \mathrm{softmax}(scale \cdot Q K^T + pse\_shift,\ masked) \cdot V $$

    B sequences, N heads, S tokens, D values a head, H = N * D, T tokens of all sequences.

    Args:
        query: float16 or bfloat16 in the layout below; int8 with the factors of integer products.
        key, value: the caches. The query's dtype, int8, or int32 (eight int4 values each), on
            Ascend950 also float8_e4m3fn (modes 0, 1 and 4 of the scales below); in the
            layout of the query with `num_key_value_heads` heads, or in pages when `block_table` is
            given: (blocks, block_size, H), (blocks, N, block_size, D) (integers: for layouts BNSD
            and TND), or NZ (blocks, N, D / c, block_size, c) with c = 16 (32 for int8).
        pse_shift: (B or 1, N, Q_S, KV_S), the query's dtype; added to the scaled scores.
        atten_mask: bool, int8 or uint8; 1 hides. sparse_mode 0 and 1: (Q_S, KV_S), (B or 1, Q_S,
            KV_S) or (B or 1, 1, Q_S, KV_S), for a single query token also (B, KV_S). sparse_mode 2,
            3 and 4: the causal template triu(ones(2048, 2048), 1).
        actual_seq_lengths, actual_seq_lengths_kv: valid tokens, one number for all sequences or one
            each; running sums in TND layouts (paged keys: plain lengths). The first has no effect
            on a single query token.
        dequant_scale1, quant_scale1, dequant_scale2: int8 arithmetic, one value each: of Q K^T, of
            the exponentials (row maximum 1) before they round to int8, of their product with V.
            uint64 is the fixpipe word of npu_trans_quant_param.
        quant_scale2, quant_offset2: int8 output, round(y * scale + offset), one value or N * D.
        antiquant_scale, antiquant_offset, antiquant_mode: an int8 cache as (cache + offset) *
            scale; first the key's half, then the value's: per channel (2, N, 1, D), (2, N, D) or
            (2, H), per tensor (2,), or with mode 1 per token (2, B, KV_S).
        key_antiquant_scale, key_antiquant_offset, key_antiquant_mode: the key's own. Mode 0: per
            channel or tensor, 1: per token, 2: per head, 3: per token and head, 4 and 5: as 1 and
            3, in pages.
        value_antiquant_scale, value_antiquant_offset, value_antiquant_mode: the value's own.
        block_table: int32 (B, blocks a sequence): the block of each `block_size` tokens.
        query_padding_size, kv_padding_size: int64: tokens behind the last valid one; sequences then
            end there instead of starting at token 0. Needs the lengths.
        key_shared_prefix, value_shared_prefix, actual_shared_prefix_len: tokens in front of every
            sequence's cache.
        query_rope, key_rope: 64 more values a head, as in multi-head latent attention; D is 128 or
            512.
        key_rope_antiquant_scale: reserved.
        num_heads, num_key_value_heads: heads of query and caches (0: the same); a head of an
            integer cache serves up to 64.
        scale: the factor of Q K^T.
        input_layout: BSH, BSND, BNSD, NSD, TND, NTD; BNSD_BSND, BSH_BNSD, BSND_BNSD, BSH_NBSD,
            BSND_NBSD, BNSD_NBSD, TND_NTD and NTD_TND name the output's layout second.
        sparse_mode, pre_tokens, next_tokens: 0: the mask, between row - pre_tokens and row +
            next_tokens; 1: the mask; 2: causal from the upper left; 3: causal to the lower right;
            4: a band counted from the lower right. No effect on a single query token without rope;
            without a mask, mode 0 hides nothing.
        inner_precise: 0 to 3; the emulation always accumulates in fp32 and always corrects hidden
            rows.
        softmax_lse_flag: asks for softmax_lse.

    Returns:
        attention_out: the query's dtype (int8 query: float16, or the dtype of query_rope), int8
            with quant_scale2.
        softmax_lse: float32 log-sum-exp of the scores, (B, N, Q_S, 1) or (T, N, 1) in TND layouts;
            infinity for rows that attend to nothing. Without softmax_lse_flag of shape (0,), as
            upstream's source has it (its page: one 0).

    Constraints:
        Rows that attend to nothing, and rows behind a sequence's length, are 0. D is at most 512.
        Floats: prompts take multiples of 16, or 192 over values of 128; TND up to 256 (A2, A3:
        with sparse_mode 1 or 2 only 64, 128, 192); NTD, NTD_TND, BSH_BNSD and BSND_BNSD 64 and
        128, and in TND the last length is the number of tokens. block_size: a multiple of 16 up to
        1024. Integers: D a multiple of 32 (int4 64); block_size a multiple of 32 up to 512.

    Differs from upstream: keys and values are single tensors, as the schema says. Masks of
    sparse_mode 2 to 4 are recognized as the causal template, not read. Block numbers out of range
    raise.
    """
    return solve(InferArguments(query, key, value, **options), in_blocks)


_checked = once(
    _check, lambda query, key, value, options: InferArguments(query, key, value, **options)
)


@npu_fused_infer_attention_score.check
def _(query, key, value, **options):
    _checked(query, key, value, options)


@npu_fused_infer_attention_score.native
def _(query, key, value, **options):
    return solve(InferArguments(query, key, value, **options), natively)


@npu_fused_infer_attention_score.meta
def _(query, key, value, **options):
    return empty_outputs(InferArguments(query, key, value, **options))


npu_fused_infer_attention_score.call(_out.public(_SCHEMA))


npu_fused_infer_attention_score.samples = [
    Sample(
        lambda make: tuple(
            make(2, n, s, 16, dtype=torch.float16) for n, s in ((4, 5), (2, 9), (2, 9))
        ),
        _sample(input_layout="BNSD", actual_seq_lengths_kv=[9, 4], softmax_lse_flag=True),
        "prompt",
    ),
    Sample(
        lambda make: tuple(
            make(*s, dtype=torch.bfloat16) for s in ((2, 1, 64), (4, 16, 32), (4, 16, 32))
        ),
        _paged,
        "paged decode",
    ),
    Sample(
        lambda make: tuple(
            make(t, n, 64, dtype=torch.float16) for t, n in ((5, 4), (9, 2), (9, 2))
        ),
        _sample(input_layout="TND", actual_seq_lengths=[2, 5], actual_seq_lengths_kv=[4, 9]),
        "ragged",
    ),
    Sample(
        lambda make: (
            make(2, 1, 128, dtype=torch.float16),
            *(make(2, 8, 64, dtype=torch.int8, low=-9, high=9) for _ in range(2)),
        ),
        lambda make: _sample(
            key_antiquant_scale=make(1, 64, dtype=torch.float16),
            value_antiquant_scale=make(1, 64, dtype=torch.float16),
        ),
        "int8 cache",
    ),
]


@npu_op(
    f"npu_fused_infer_attention_score.out({_ARGUMENTS}, Tensor? workspace=None, "
    "Tensor(a!) attention_out, Tensor(b!) softmax_lse) -> (Tensor(a!), Tensor(b!))",
    core="MIX_AIC",
)
def npu_fused_infer_attention_score_out(
    query, key, value, workspace, attention_out, softmax_lse, **options
):
    """`npu_fused_infer_attention_score` into given tensors; `workspace` is scratch memory.

    Without softmax_lse_flag, softmax_lse may have any shape and dtype and is not written.
    """
    call = InferArguments(query, key, value, **options)
    return _out.write(call, solve(call, in_blocks), attention_out, softmax_lse)


@npu_fused_infer_attention_score_out.check
def _(query, key, value, workspace, attention_out, softmax_lse, **options):
    call = InferArguments(query, key, value, **options)
    _check(call)
    _out.check(call, workspace, attention_out, softmax_lse)


@npu_fused_infer_attention_score_out.native
def _(query, key, value, workspace, attention_out, softmax_lse, **options):
    call = InferArguments(query, key, value, **options)
    return _out.write(call, solve(call, natively), attention_out, softmax_lse)


@npu_fused_infer_attention_score_out.meta
def _(attention_out, softmax_lse):
    return attention_out, softmax_lse


@npu_op(
    f"_npu_fused_infer_attention_score_get_max_workspace({_ARGUMENTS}) -> Tensor", core="MIX_AIC"
)
def _npu_fused_infer_attention_score_get_max_workspace(query):
    """Scratch memory for the out form, enough for any lengths: 1-D, of the query's dtype."""
    return _out.workspace(query)


@_npu_fused_infer_attention_score_get_max_workspace.check
def _(query, key, value, **options):
    _check(InferArguments(query, key, value, **options))


@npu_op(
    "_npu_fused_infer_attention_score_infer_output(Tensor query, Tensor value, *, str "
    'input_layout="BSH", Tensor? quant_scale2=None, Tensor? block_table=None, int '
    "num_heads=1, int num_key_value_heads=0, bool softmax_lse_flag=False, Tensor? "
    "query_rope=None) -> (Tensor, Tensor)",
    core="MIX_AIC",
)
def _npu_fused_infer_attention_score_infer_output(query, value, **options):
    """Uninitialized attention_out and softmax_lse of the right shapes, for the out form."""
    return empty_outputs(InferArguments(query, value, value, **options))


@_npu_fused_infer_attention_score_infer_output.check
def _(query, value, **options):
    rules.layout(InferArguments(query, value, value, **options))
