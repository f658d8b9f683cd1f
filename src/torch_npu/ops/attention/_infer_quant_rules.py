"""The documented constraints of quantized inference attention; see `_infer_rules`."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _quantized
from torch_npu.ops.attention._infer import scales
from torch_npu.ops.attention._infer_arguments import (
    BAND,
    DEFAULT,
    RIGHT_DOWN,
    InferArguments,
    each,
    kv_lengths,
)
from torch_npu.ops.attention._infer_float_rules import plain
from torch_npu.ops.attention._infer_mask_rules import token_counts
from torch_npu.ops.attention._infer_rules import absent


def integers(call: InferArguments) -> None:
    """int8 query, key and value, with the three factors of the integer products."""
    inner = ("dequant_scale1", "quant_scale1", "dequant_scale2")
    if call.query.dtype != torch.int8:
        absent(call, "unless query is int8", *inner)
        return
    must.dtype("key", call.key, torch.int8)
    must.dtype("value", call.value, torch.int8)
    for argument in inner:
        name, given = call.name(argument), getattr(call, argument)
        must.present(name, given, "with an int8 query")
        words = () if argument == "quant_scale1" else (torch.uint64, torch.int64)
        must.dtype(name, given, torch.float32, *words)
        must.hold(given.numel() == 1, name, "one value", tuple(given.shape), ErrCode.PARAM)
    allowed = ("BSH", "BNSD", "BSND", "BNSD_BSND")
    must.choice("input_layout", call.input_layout, allowed)
    must.hold(
        not call.decode, "query", "of more than one token when it is int8", tuple(call.query.shape)
    )
    absent(call, "with an int8 query", "block_table", "antiquant_scale", "key_antiquant_scale")


def output(call: InferArguments) -> None:
    """quant_scale2 and quant_offset2."""
    scale, offset = call.quant_scale2, call.quant_offset2
    name, offset_name = call.name("quant_scale2"), call.name("quant_offset2")
    if scale is None:
        absent(call, f"without {name}", "quant_offset2")
        return
    kinds = (
        (torch.float32, torch.bfloat16) if call.query.dtype == torch.bfloat16 else (torch.float32,)
    )
    must.dtype(name, scale, *kinds)
    if plain(call):
        must.choice("input_layout", call.input_layout, ("BSH", "BSND", "BNSD", "BNSD_BSND"))
        same = call.value_size == call.queries[3]
        expected = f"of the query's head size ({call.queries[3]}) with {name}"
        must.hold(same, "value", expected, call.value_size, ErrCode.PARAM)
    channels = call.num_heads * call.value_size
    must.hold(
        scale.numel() in (1, channels),
        name,
        f"of 1 or {channels} values",
        tuple(scale.shape),
        ErrCode.PARAM,
    )
    if offset is not None:
        must.same_dtype(offset_name, offset, name, scale)
        must.shape(offset_name, offset, tuple(scale.shape))
    if scale.numel() > 1:
        absent(
            call,
            f"with {name} per channel",
            "query_padding_size",
            "kv_padding_size",
            "softmax_lse_flag",
        )
        size = call.value_size
        must.hold(size % 32 == 0, "value", f"of a head size divisible by 32 with {name}", size)
    tokens = call.pre_tokens, call.next_tokens
    band = call.sparse_mode == BAND and not call.decode
    must.hold(
        not band or min(tokens) >= 0, "pre_tokens", "not negative with a quantized output", tokens
    )
    if offset is not None:
        _no_empty_rows(call, offset_name)


def _no_empty_rows(call: InferArguments, name: str) -> None:
    """An offset turns rows that attend to nothing into something else than 0: upstream refuses."""
    if call.decode or call.ragged:
        return
    rows = each(call.actual_seq_lengths or [call.queries[2]], call.batch)
    for row, columns in zip(rows, kv_lengths(call), strict=True):
        if not isinstance(row, int) or not isinstance(columns, int):
            return
        mode, before, after = call.sparse_mode, call.pre_tokens, call.next_tokens
        empty = (
            (
                mode == DEFAULT
                and call.atten_mask is not None
                and (row - columns - before > 0 or after < 0)
            )
            or (mode == RIGHT_DOWN and columns < row)
            or (mode == BAND and (before < 0 or after + columns - row < 0))
        )
        must.hold(
            not empty, name, "left out when rows attend to nothing", f"{row} rows, {columns} keys"
        )


def cache(call: InferArguments) -> None:
    """Scales and offsets of an int8 or int4 cache."""
    pairs = (
        ("key_antiquant_scale", "value_antiquant_scale"),
        ("key_antiquant_offset", "value_antiquant_offset"),
    )
    for left, right in pairs:
        for argument, other in ((left, right), (right, left)):
            if getattr(call, other) is not None:
                must.present(
                    call.name(argument), getattr(call, argument), f"with {call.name(other)}"
                )
    separate = call.key_antiquant_scale is not None
    if call.key.dtype not in (torch.int8, torch.int32):
        absent(
            call,
            "unless key is int8 or int4",
            "antiquant_scale",
            *(n for pair in pairs for n in pair),
        )
        return
    if call.query.dtype == torch.int8:
        return
    name = call.name("key_antiquant_scale")
    if not separate:
        scale = call.antiquant_scale
        must.hold(scale is not None, name, "given with an integer key", None)
        assert scale is not None
        _common(call, scale, call.antiquant_offset)
        return
    keys, values = call.key_antiquant_mode, call.value_antiquant_mode
    key_mode, value_mode = call.name("key_antiquant_mode"), call.name("value_antiquant_mode")
    must.choice(key_mode, keys, range(6) if call.decode else range(2))
    must.hold(
        (keys, values) == (0, 1) or keys == values, value_mode, f"{key_mode} ({keys})", values
    )
    if not call.decode:
        _drafting(call)
    for which, side in enumerate(("key", "value")):
        scale, offset, mode = scales(call, which)
        assert scale is not None  # both have one
        _scale(call, side, scale, offset, mode)


def _common(call: InferArguments, scale: torch.Tensor, offset: torch.Tensor | None) -> None:
    """antiquant_scale, which holds the key's half and the value's half."""
    must.dtype("key", call.key, torch.int8)
    must.choice("antiquant_mode", call.antiquant_mode, (0, 1))
    token = call.decode and call.antiquant_mode == 1
    must.dtype("antiquant_scale", scale, torch.float32 if token else call.query.dtype)
    if not call.decode:
        must.dtype("query", call.query, torch.float16)
    must.hold(
        scale.shape[0] == 2, "antiquant_scale", "of 2 halves", tuple(scale.shape), ErrCode.PARAM
    )
    for half in scale:
        scale_shape(
            call, "antiquant_scale", half if half.dim() else half.view(1), 1 if token else 0
        )
    if offset is not None:
        must.same_dtype("antiquant_offset", offset, "antiquant_scale", scale)
        must.shape("antiquant_offset", offset, tuple(scale.shape))


def _drafting(call: InferArguments) -> None:
    """An integer cache under several query tokens: bfloat16 over int8, up to 16 tokens."""
    must.dtype("query", call.query, torch.bfloat16)
    must.dtype("key", call.key, torch.int8)
    must.hold(
        not call.ragged, "input_layout", "BSH, BSND or BNSD with an int8 key", call.input_layout
    )
    rows = call.queries[2]
    must.hold(rows <= 16, "query", "of at most 16 tokens over an int8 key", rows, ErrCode.PARAM)
    nz = call.key.dim() == 5
    must.hold(not call.paged or nz, "key", "in NZ pages when it is int8", tuple(call.key.shape))


def _scale(
    call: InferArguments, side: str, scale: torch.Tensor, offset: torch.Tensor | None, mode: int
) -> None:
    name = call.name(f"{side}_antiquant_scale")
    tensor = mode in (_quantized.PER_CHANNEL, _quantized.PER_HEAD)
    must.dtype(name, scale, call.query.dtype if tensor else torch.float32)
    paged = mode in (_quantized.PAGED_TOKEN, _quantized.PAGED_TOKEN_HEAD)
    must.hold(not paged or call.paged, name, "in pages only with block_table", f"mode {mode}")
    scale_shape(call, name, scale, mode)
    if offset is not None:
        offset_name = call.name(f"{side}_antiquant_offset")
        must.same_dtype(offset_name, offset, name, scale)
        must.shape(offset_name, offset, tuple(scale.shape))


def scale_shape(call: InferArguments, name: str, scale: torch.Tensor, mode: int) -> None:
    """The documented shapes of a cache's scale."""
    _, tokens = token_counts(call)
    size = call.queries[3]
    allowed = _quantized.scale_shapes(
        mode, call.batch, call.kv_heads, size, tokens, call.key.shape, call.block_size
    )
    found = tuple(scale.shape)
    longer = mode in (_quantized.PER_TOKEN, _quantized.PER_TOKEN_HEAD)  # may cover more tokens
    fits = any(
        len(found) == len(shape)
        and found[:-1] == tuple(shape[:-1])
        and (found[-1] >= shape[-1] if longer else found[-1] == shape[-1])
        for shape in allowed
    )
    must.hold(fits, name, f"of shape {must.one_of(allowed)} in mode {mode}", found, ErrCode.PARAM)
