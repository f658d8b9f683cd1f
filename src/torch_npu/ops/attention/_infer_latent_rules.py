"""The documented constraints of rope halves, ragged layouts and sinks; see `_infer_rules`."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _infer_float_rules as floats
from torch_npu.ops.attention import _quantized
from torch_npu.ops.attention._infer_arguments import BAND, DEFAULT, RIGHT_DOWN, TREE, InferArguments
from torch_npu.ops.attention._infer_rules import FLOATS, absent

#: values a head of the rope halves
ROPE = 64


def latent(call: InferArguments) -> None:
    """query_rope and key_rope: multi-head latent attention."""
    for argument, other in (("query_rope", "key_rope"), ("key_rope", "query_rope")):
        if getattr(call, other) is not None:
            must.present(argument, getattr(call, argument), f"with {other}")
    if call.query_rope is None:
        return
    quantized = call.query.dtype == torch.int8 or bool(call.query_format)
    if not quantized:
        must.same_dtype("query_rope", call.query_rope, "query", call.query)
        must.same_dtype("key_rope", call.key_rope, "key", call.key)
    _, count, _, size = call.queries
    must.hold(
        size in (128, 512), "query", "of head size 128 or 512 with query_rope", size, ErrCode.PARAM
    )
    must.shape("query_rope", call.query_rope, _with_size(call.query, size, call.layout == "BSH"))
    must.shape(
        "key_rope",
        call.key_rope,
        _with_size(call.key, size, call.key.dim() == 3 and (call.paged or call.layout == "BSH")),
    )
    excluded = (
        "query_padding_size",
        "kv_padding_size",
        "pse_shift",
        "key_shared_prefix",
        "quant_scale2",
    )
    absent(call, "with query_rope", *excluded, "antiquant_scale")
    if not quantized:
        absent(call, "with query_rope", "key_antiquant_scale")
    if size == 128:
        must.choice("input_layout", call.input_layout, floats.LAYOUTS)
        return
    must.choice("sparse_mode", call.sparse_mode, (DEFAULT, RIGHT_DOWN, BAND, TREE))
    must.choice(call.name("num_heads"), count, tuple(2**n for n in range(8)))
    must.hold(
        call.kv_heads == 1,
        "num_key_value_heads",
        "1 with query_rope of head size 512",
        call.kv_heads,
    )
    layouts = ("BSH", "BSND", "BNSD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND", "TND_NTD")
    must.choice("input_layout", call.input_layout, layouts)


def _with_size(tensor: torch.Tensor, size: int, flat: bool) -> tuple[int, ...]:
    """The shape of a rope half: that of its other half, with 64 values a head."""
    shape = list(tensor.shape)
    if tensor.dim() == 5:
        width = 16
        return (*shape[:2], ROPE // width, shape[3], width)
    shape[-1] = shape[-1] // size * ROPE if flat else ROPE
    return tuple(shape)


def ragged(call: InferArguments) -> None:
    """TND and its kin: what they exclude."""
    if not call.ragged:
        return
    excluded = (
        "query_padding_size",
        "kv_padding_size",
        "pse_shift",
        "key_shared_prefix",
        "antiquant_scale",
    )
    absent(call, f"for layout {call.input_layout}", *excluded)


def sink(call: InferArguments) -> None:
    """learnable_sink."""
    given = call.learnable_sink
    if given is None:
        return
    own = chips.current().family == "A5" or floats.fused(call)
    must.dtype("learnable_sink", given, call.query.dtype if own else torch.bfloat16)
    must.shape("learnable_sink", given, (call.num_heads,))
    must.dtype("key", call.key, *FLOATS)
    absent(call, "with learnable_sink", "pse_shift", "quant_scale2")
    size = call.queries[3]
    latent = call.query_rope is not None and size == 512
    must.hold(not latent, "query", "of another head size than 512 with learnable_sink", size)
    if own:
        must.choice("inner_precise", call.inner_precise, (0,))
    if chips.current().family == "A5":
        must.choice("query", size, (64, 128, 192))
        must.choice("value", call.value_size, (64, 128))


def integers(call: InferArguments) -> None:
    """int8 latent attention (second version): a scale a query token and head, one a cache."""
    if call.query.dtype != torch.int8:
        absent(call, "unless query is int8", "dequant_scale_query")
        return
    must.present("query_rope", call.query_rope, "with an int8 query")
    must.hold(call.queries[3] == 512, "query", "of head size 512 when it is int8", call.queries[3])
    must.dtype("key", call.key, torch.int8)
    for argument in ("query_rope", "key_rope"):
        must.dtype(argument, getattr(call, argument), torch.bfloat16)
    for argument in ("dequant_scale_query", "key_antiquant_scale", "value_antiquant_scale"):
        given = getattr(call, argument)
        must.present(call.name(argument), given, "with an int8 query")
        must.dtype(call.name(argument), given, torch.float32)
        if argument != "dequant_scale_query":
            must.hold(given.numel() == 1, call.name(argument), "one value", tuple(given.shape))
    batch, count, rows, _ = call.queries
    shape = {"BNSD": (batch, count, rows), "TND": (rows, count)}.get(
        call.layout, (batch, rows, count)
    )
    must.shape("dequant_scale_query", call.dequant_scale_query, shape)
    must.choice("query_quant_mode", call.query_quant_mode, (_quantized.PER_TOKEN_HEAD,))
    modes = call.key_antiquant_mode, call.value_antiquant_mode
    must.hold(modes == (0, 0), call.name("key_antiquant_mode"), "0 with an int8 query", modes)
    absent(call, "with an int8 query", "key_antiquant_offset", "quant_scale2")
