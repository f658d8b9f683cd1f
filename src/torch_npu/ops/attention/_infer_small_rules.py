"""The constraints of float8, hifloat8 and float4 in the fused attention; see `_small_floats`."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _quantized
from torch_npu.ops.attention import _small_floats as small
from torch_npu.ops.attention._infer_arguments import InferArguments
from torch_npu.ops.attention._infer_quant_rules import scale_shape
from torch_npu.ops.attention._infer_rules import FLOATS, absent

#: the layouts of caches in small formats under a half-precision query
_CACHE_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", "TND")

#: modes of key and value -> the formats that take them
_CACHE_MODES = {
    _quantized.PER_CHANNEL: ("float8_e4m3fn", "hifloat8"),
    _quantized.PER_TOKEN: ("float8_e4m3fn",),
    _quantized.PAGED_TOKEN: ("float8_e4m3fn",),
    small.TOKEN_GROUP: ("float4_e2m1fn_x2",),
}

_LATENT, _GROUPED, _BLOCKS, _MX = (3, 0, 0), (3, 3, 2), (7, 7, 7), (6, 6, 8)


def small_floats(call: InferArguments) -> bool:
    """Checks the formats; False where there are none."""
    if not call.query_format and not call.key_format:
        return False
    chip = chips.current()
    must.hold(
        chip.family == "A5",
        "query" if call.query_format else "key",
        "float16, bfloat16 or an integer",
        f"{call.query_format or call.key_format} on {chip.name}",
        ErrCode.NOT_SUPPORT,
    )
    must.hold(
        call.key_format == call.value_format,
        "value",
        f"of the format of key ({call.key_format or call.key.dtype})",
        call.value_format or call.value.dtype,
        ErrCode.TYPE,
    )
    absent(call, "with float8 or float4", "key_antiquant_offset", "value_antiquant_offset")
    if call.query_format:
        _full(call)
    else:
        _cache(call)
    return True


def _cache(call: InferArguments) -> None:
    """A half-precision query over a cache in a small format."""
    must.dtype("query", call.query, *FLOATS)
    absent(call, "unless query is int8 or float8", "dequant_scale_query")
    must.choice("input_layout", call.input_layout, _CACHE_LAYOUTS)
    mode = call.key_antiquant_mode
    name = call.name("key_antiquant_mode")
    modes = tuple(m for m, formats in _CACHE_MODES.items() if call.key_format in formats)
    must.choice(name, mode, modes)
    must.hold(
        call.value_antiquant_mode == mode,
        call.name("value_antiquant_mode"),
        f"{name} ({mode})",
        call.value_antiquant_mode,
    )
    for side in ("key", "value"):
        argument = f"{side}_antiquant_scale"
        given, known = getattr(call, argument), call.name(argument)
        must.present(known, given, f"with a {call.key_format} {side}")
        if mode == small.TOKEN_GROUP:
            must.dtype(known, given, torch.float8_e8m0fnu)
            must.shape(
                known,
                given,
                (1, call.batch, call.kv_heads, None, call.queries[3] // small.GROUP),
            )
            continue
        kind = call.query.dtype if mode == _quantized.PER_CHANNEL else torch.float32
        must.dtype(known, given, kind)
        scale_shape(call, known, given, mode)


def _full(call: InferArguments) -> None:
    """A query in a small format: the caches are of the same."""
    must.hold(
        call.key_format == call.query_format,
        "key",
        f"{call.query_format}, as query",
        call.key_format or call.key.dtype,
        ErrCode.TYPE,
    )
    modes = call.query_quant_mode, call.key_antiquant_mode, call.value_antiquant_mode
    must.hold(
        modes != _MX,
        "query_quant_mode",
        "other than 6 with key_quant_mode 6 and value_quant_mode 8 (MXFP8), which is not emulated",
        modes,
        ErrCode.NOT_SUPPORT,
    )
    allowed = (_LATENT,) if call.query_rope is not None else (_GROUPED, _BLOCKS)
    must.hold(
        modes in allowed,
        "query_quant_mode",
        f"with those of key and value {must.one_of(allowed)} for a {call.query_format} query",
        modes,
    )
    for argument in ("dequant_scale_query", "key_antiquant_scale", "value_antiquant_scale"):
        name, given = call.name(argument), getattr(call, argument)
        must.present(name, given, f"with a {call.query_format} query")
        must.dtype(name, given, torch.float32)
    absent(call, f"with a {call.query_format} query", "quant_scale2", "pse_shift")
    {_LATENT: _latent, _GROUPED: _grouped, _BLOCKS: _blocks}[modes](call)


def _latent(call: InferArguments) -> None:
    must.hold(call.queries[3] == 512, "query", "of head size 512", call.queries[3], ErrCode.PARAM)
    for argument in ("query_rope", "key_rope"):
        must.dtype(argument, getattr(call, argument), torch.bfloat16)
    for argument in ("key_antiquant_scale", "value_antiquant_scale"):
        must.shape(call.name(argument), getattr(call, argument), (1,))
    batch, count, rows, _ = call.queries
    shapes = {"BNSD": (batch, count, rows), "TND": (rows, count)}
    shape = shapes.get(call.layout, (batch, rows, count))
    must.shape("dequant_scale_query", call.dequant_scale_query, shape)


def _grouped(call: InferArguments) -> None:
    """One factor a query token and head, a key token and head, a value head; pages of 128."""
    must.choice("input_layout", call.input_layout, ("NTD_TND",))
    must.present("block_table", call.block_table, "with quantization modes 3, 3 and 2")
    must.choice("query_format", call.query_format, ("float8_e4m3fn",))
    must.choice("block_size", call.block_size, (128,))
    must.hold(call.queries[3] == 128, "query", "of head size 128", call.queries[3], ErrCode.PARAM)
    _, count, tokens, _ = call.queries
    must.shape("dequant_scale_query", call.dequant_scale_query, (count, tokens))
    shape = (call.key.shape[0], call.kv_heads, call.block_size)
    must.shape(call.name("key_antiquant_scale"), call.key_antiquant_scale, shape)
    must.shape(call.name("value_antiquant_scale"), call.value_antiquant_scale, (call.kv_heads,))
    must.present(call.name("quant_scale1"), call.quant_scale1, "with modes 3, 3 and 2")


def _blocks(call: InferArguments) -> None:
    """One factor for 128 query tokens, and for 256 tokens of the caches."""
    must.choice("input_layout", call.input_layout, ("BSH", "BSND", "BNSD", "BNSD_BSND", "NTD_TND"))
    absent(call, "with quantization mode 7", "block_table", "atten_mask", "softmax_lse_flag")
    must.choice("inner_precise", call.inner_precise, (0, 1))
    size, value = call.queries[3], call.value_size
    must.hold(
        max(size, value) <= 128, "query", "of head sizes up to 128", (size, value), ErrCode.PARAM
    )
    batch, count, rows, _ = call.queries
    columns = call.key_sizes[2]
    for argument, heads, tokens, block in (
        ("dequant_scale_query", count, rows, small.Q_BLOCK),
        ("key_antiquant_scale", call.kv_heads, columns, small.KV_BLOCK),
        ("value_antiquant_scale", call.kv_heads, columns, small.KV_BLOCK),
    ):
        if call.ragged:
            shape: tuple[int, ...] = (heads, tokens // block + call.batch, 1)
        else:
            shape = (batch, heads, -(-tokens // block), 1)
        must.shape(call.name(argument), getattr(call, argument), shape)
