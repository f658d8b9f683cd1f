"""npu_fused_infer_attention_score_v2: the second version, its workspace and out forms."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._engine import in_blocks, natively
from torch_npu.ops.attention import _infer_float_rules as floats
from torch_npu.ops.attention import _infer_latent_rules as latent
from torch_npu.ops.attention import _infer_mask_rules as masks
from torch_npu.ops.attention import _infer_quant_rules as quantized
from torch_npu.ops.attention import _infer_rules as rules
from torch_npu.ops.attention import _out
from torch_npu.ops.attention import _small_floats as small
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
from torch_npu.ops.attention._infer_small_rules import small_floats

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? query_rope=None, Tensor? "
    "key_rope=None, Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? "
    "actual_seq_qlen=None, SymInt[]? actual_seq_kvlen=None, Tensor? block_table=None, "
    "Tensor? dequant_scale_query=None, Tensor? dequant_scale_key=None, Tensor? "
    "dequant_offset_key=None, Tensor? dequant_scale_value=None, Tensor? "
    "dequant_offset_value=None, Tensor? dequant_scale_key_rope=None, Tensor? "
    "quant_scale_out=None, Tensor? quant_offset_out=None, Tensor? quant_scale_p=None, "
    "Tensor? learnable_sink=None, int num_query_heads=1, int num_key_value_heads=0, float "
    "softmax_scale=1.0, int pre_tokens=2147483647, int next_tokens=2147483647, str "
    'input_layout="BSH", int sparse_mode=0, int block_size=0, int query_quant_mode=0, int '
    "key_quant_mode=0, int value_quant_mode=0, int inner_precise=0, bool "
    "return_softmax_lse=False, int? query_dtype=None, int? key_dtype=None, int? "
    "value_dtype=None, int? query_rope_dtype=None, int? key_rope_dtype=None, int? "
    "key_shared_prefix_dtype=None, int? value_shared_prefix_dtype=None, int? "
    "dequant_scale_query_dtype=None, int? dequant_scale_key_dtype=None, int? "
    "dequant_scale_value_dtype=None, int? dequant_scale_key_rope_dtype=None, int? "
    "out_dtype=None"
)

_SCHEMA = f"npu_fused_infer_attention_score_v2({_ARGUMENTS}) -> (Tensor, Tensor)"

#: the names of npu_fused_infer_attention_score -> the names here
_NAMES = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "key_antiquant_scale": "dequant_scale_key",
    "key_antiquant_offset": "dequant_offset_key",
    "value_antiquant_scale": "dequant_scale_value",
    "value_antiquant_offset": "dequant_offset_value",
    "key_rope_antiquant_scale": "dequant_scale_key_rope",
    "quant_scale2": "quant_scale_out",
    "quant_offset2": "quant_offset_out",
    "quant_scale1": "quant_scale_p",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "key_antiquant_mode": "key_quant_mode",
    "value_antiquant_mode": "value_quant_mode",
    "softmax_lse_flag": "return_softmax_lse",
}
_CANONICAL = {theirs: ours for ours, theirs in _NAMES.items()}

#: arguments that name a tensor's format where its dtype cannot
_FORMATS = ("query_dtype", "key_dtype", "value_dtype")

#: arguments that upstream's page calls reserved
_RESERVED = (
    "query_rope_dtype",
    "key_rope_dtype",
    "key_shared_prefix_dtype",
    "value_shared_prefix_dtype",
    "dequant_scale_query_dtype",
    "dequant_scale_key_dtype",
    "dequant_scale_value_dtype",
    "dequant_scale_key_rope_dtype",
)


def _call(query, key, value, options) -> InferArguments:
    other = (*_RESERVED, *_FORMATS)
    kept = {_CANONICAL.get(n, n): v for n, v in options.items() if n not in other}
    for name, tensor in zip(_FORMATS, (query, key, value), strict=True):
        kept[name.replace("dtype", "format")] = small.format_of(tensor, options.get(name))
    query, key, value = (small.raw(t) for t in (query, key, value))
    if kept.get("out_dtype") is not None:
        kept["out_dtype"] = _dtypes.storage(kept["out_dtype"])
    return InferArguments(
        query, key, value, operator="npu_fused_infer_attention_score_v2", names=_NAMES, **kept
    )


def _check(query, key, value, options) -> InferArguments:
    for name in (*_RESERVED, "dequant_scale_key_rope"):
        must.unset(name, options.get(name))
    call = _call(query, key, value, options)
    rules.product(call, "A2", "A3", "A5")
    rules.layout(call)
    _check_formats(query, key, value, options)
    scaled = small_floats(call)
    if not scaled:
        must.dtype("query", query, *rules.FLOATS, torch.int8)
        must.dtype("key", key, *rules.CACHES)
    if not call.query_format:
        must.unset("quant_scale_p", options.get("quant_scale_p"))
    plain = floats.plain(call)
    rules.heads(call, limited=not plain)
    rules.caches(call, limited=not plain)
    if plain:
        floats.heads(call)
    else:
        rules.extents(call, align=16, prompt_only=True)
    rules.lengths(call)
    if plain:
        floats.totals(call)
    rules.paged(call, floats.block_size)
    masks.mask(call, (DEFAULT, ALL, LEFT_UP, RIGHT_DOWN, BAND, TREE))
    masks.bias(call)
    must.choice("inner_precise", call.inner_precise, range(4))
    quantized.output(call)
    if not scaled:
        latent.integers(call)
        quantized.cache(call)
    latent.latent(call)
    latent.ragged(call)
    latent.sink(call)
    _check_out_dtype(call, options.get("out_dtype"))
    return call


def _check_formats(query, key, value, options) -> None:
    """A format's number is one that the tensor's dtype can carry."""
    for name, tensor in zip(_FORMATS, (query, key, value), strict=True):
        code = options.get(name)
        carried = code is None or _dtypes.storage(code) == tensor.dtype
        byte = tensor.dtype == torch.uint8 and small.format_of(tensor, code) != ""
        must.hold(carried or byte, name, f"a type that {tensor.dtype} holds", _dtypes.text(code))


def _check_out_dtype(call: InferArguments, code: int | None) -> None:
    if code is None:
        return
    allowed: tuple[torch.dtype, ...] = (call.query.dtype,)
    if call.quant_scale2 is not None:
        allowed = (torch.int8, torch.float8_e5m2, torch.float8_e4m3fn)
    elif call.query.dtype == torch.int8 or call.query_format:
        allowed = rules.FLOATS
    must.hold(call.out_dtype in allowed, "out_dtype", must.one_of(allowed), _dtypes.text(code))


def _sample(**options):
    return {"num_query_heads": 4, "num_key_value_heads": 2, "softmax_scale": 0.25, **options}


@npu_op(_SCHEMA, ge="FusedInferAttentionScore", core="MIX_AIC")
def npu_fused_infer_attention_score_v2(query, key, value, **options):
    r"""Attention for inference, second version: with sinks, without prefixes and left padding.

    $$ y = \mathrm{softmax}(softmax\_scale \cdot Q K^T + pse\_shift,\ masked) \cdot V $$

    Args:
        query, key, value, pse_shift, atten_mask, block_table, block_size, query_rope, key_rope,
            num_key_value_heads, pre_tokens, next_tokens, input_layout, inner_precise: as in
            `npu_fused_infer_attention_score`.
        actual_seq_qlen, actual_seq_kvlen, num_query_heads, softmax_scale, return_softmax_lse: there
            actual_seq_lengths, actual_seq_lengths_kv, num_heads, scale and softmax_lse_flag.
        dequant_scale_key, dequant_offset_key, key_quant_mode: there key_antiquant_scale and so on.
        dequant_scale_value, dequant_offset_value, value_quant_mode: likewise.
        quant_scale_out, quant_offset_out: there quant_scale2 and quant_offset2.
        dequant_scale_query, query_quant_mode: an int8 query with rope: one float32 scale a token
            and head (mode 3), (B, S, N), (B, N, S) for BNSD or (T, N) for TND; the caches then have
            one scale each.
        learnable_sink: (N,): one more logit a head, in the sum of the softmax, without a value.
            bfloat16; of the query's dtype on A5 and in TND on A2 and A3. softmax_lse includes it.
        sparse_mode: also 9, a tree mask: (B, Q_S, Q_S), or the sequences' masks one after the other
            in TND; it applies to the last Q_S keys, all earlier keys are seen.
        out_dtype: with quant_scale_out int8 (the default), float8_e5m2 or float8_e4m3fn; with an
            int8 query float16 or bfloat16.
        query_dtype, key_dtype, value_dtype: torch_npu.hifloat8 or torch_npu.float4_e2m1fn_x2 for
            uint8 tensors of that format (Ascend950).
        quant_scale_p: the card's factor of the exponentials before they round to float8; one value,
            without effect here. Only with a float8 query.
        dequant_scale_key_rope: reserved, as are query_rope_dtype, key_rope_dtype,
            key_shared_prefix_dtype, value_shared_prefix_dtype, dequant_scale_query_dtype,
            dequant_scale_key_dtype, dequant_scale_value_dtype and dequant_scale_key_rope_dtype.

    Returns:
        attention_out and softmax_lse, as in `npu_fused_infer_attention_score`.

    Constraints:
        Those of `npu_fused_infer_attention_score`; D a multiple of 16 for several query tokens.
        On Ascend950 also small floats, as (query_quant_mode, key_quant_mode, value_quant_mode):
        caches of float8_e4m3fn or hifloat8 per channel (0), of float8_e4m3fn per token (1, in pages
        4), of float4_e2m1 per 32 values of a token (6, factors float8_e8m0fnu); float8_e4m3fn or
        hifloat8 query and caches with rope halves (3, 0, 0) or per block of tokens (7, 7, 7),
        float8_e4m3fn in pages (3, 3, 2).

    Differs from upstream: as `npu_fused_infer_attention_score`. The exponentials of a float8
    query's softmax are not rounded to float8; MXFP8 (6, 6, 8) raises.
    """
    return solve(_call(query, key, value, options), in_blocks)


@npu_fused_infer_attention_score_v2.check
def _(query, key, value, **options):
    _check(query, key, value, options)


@npu_fused_infer_attention_score_v2.native
def _(query, key, value, **options):
    return solve(_call(query, key, value, options), natively)


@npu_fused_infer_attention_score_v2.meta
def _(query, key, value, **options):
    return empty_outputs(_call(query, key, value, options))


npu_fused_infer_attention_score_v2.call(_out.public(_SCHEMA))


npu_fused_infer_attention_score_v2.samples = [
    Sample(
        lambda make: tuple(
            make(2, s, n * 16, dtype=torch.bfloat16) for s, n in ((5, 4), (9, 2), (9, 2))
        ),
        _sample(actual_seq_kvlen=[9, 4], return_softmax_lse=True),
        "prompt",
    ),
    Sample(
        lambda make: tuple(
            make(t, n, 64, dtype=torch.bfloat16) for t, n in ((5, 4), (9, 2), (9, 2))
        ),
        lambda make: _sample(
            input_layout="TND",
            actual_seq_qlen=[2, 5],
            actual_seq_kvlen=[4, 9],
            learnable_sink=make(4, dtype=torch.bfloat16),
        ),
        "sink",
    ),
    Sample(
        lambda make: (
            make(2, 4, 1, 64, dtype=torch.bfloat16),
            *(make(2, 2, 8, 64, dtype=torch.int8, low=-9, high=9) for _ in range(2)),
        ),
        lambda make: _sample(
            input_layout="BNSD",
            dequant_scale_key=make(2, 2, 8),
            dequant_scale_value=make(2, 2, 8),
            key_quant_mode=3,
            value_quant_mode=3,
        ),
        "int8 cache",
    ),
]


@npu_op(
    f"npu_fused_infer_attention_score_v2.out({_ARGUMENTS}, Tensor? workspace=None, "
    "Tensor(a!) attention_out, Tensor(b!) softmax_lse) -> (Tensor(a!), Tensor(b!))",
    core="MIX_AIC",
)
def npu_fused_infer_attention_score_v2_out(
    query, key, value, workspace, attention_out, softmax_lse, **options
):
    """`npu_fused_infer_attention_score_v2` into given tensors; `workspace` is scratch memory.

    Without return_softmax_lse, softmax_lse may have any shape and dtype and is not written.
    """
    call = _call(query, key, value, options)
    return _out.write(call, solve(call, in_blocks), attention_out, softmax_lse)


@npu_fused_infer_attention_score_v2_out.check
def _(query, key, value, workspace, attention_out, softmax_lse, **options):
    call = _check(query, key, value, options)
    _out.check(call, workspace, attention_out, softmax_lse)


@npu_fused_infer_attention_score_v2_out.native
def _(query, key, value, workspace, attention_out, softmax_lse, **options):
    call = _call(query, key, value, options)
    return _out.write(call, solve(call, natively), attention_out, softmax_lse)


@npu_fused_infer_attention_score_v2_out.meta
def _(attention_out, softmax_lse):
    return attention_out, softmax_lse


@npu_op(
    f"_npu_fused_infer_attention_score_v2_get_max_workspace({_ARGUMENTS}) -> Tensor", core="MIX_AIC"
)
def _npu_fused_infer_attention_score_v2_get_max_workspace(query):
    """Scratch memory for the out form, enough for any lengths: 1-D, of the query's dtype."""
    return _out.workspace(query)


@_npu_fused_infer_attention_score_v2_get_max_workspace.check
def _(query, key, value, **options):
    _check(query, key, value, options)


@npu_op(
    "_npu_fused_infer_attention_score_v2_infer_output(Tensor query, Tensor value, *, int? "
    'query_dtype=None, int? value_dtype=None, str input_layout="BSH", Tensor? '
    "quant_scale_out=None, Tensor? block_table=None, int num_query_heads=1, int "
    "num_key_value_heads=0, bool return_softmax_lse=False, Tensor? query_rope=None, int? "
    "out_dtype=None) -> (Tensor, Tensor)",
    core="MIX_AIC",
)
def _npu_fused_infer_attention_score_v2_infer_output(query, value, **options):
    """Uninitialized attention_out and softmax_lse of the right shapes, for the out form."""
    return empty_outputs(_call(query, value, value, options))


@_npu_fused_infer_attention_score_v2_infer_output.check
def _(query, value, **options):
    rules.layout(_call(query, value, value, options))
