"""Layouts, head sizes and block sizes of unquantized inference attention.

Sources: CANN's fused_infer_attention_score, for A2 and A3 op_host/arch22 (feature checks) and the
route that TND takes to the split-fuse kernel (fused_infer_attention_score_tiling.cpp), for A5
op_host/checkers.
"""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.attention._infer_arguments import (
    BAND,
    DEFAULT,
    RIGHT_DOWN,
    InferArguments,
    sizes,
)

FLOATS = (torch.float16, torch.bfloat16)

#: the layouts without rope halves, and with rope halves beside 128 values a head
LAYOUTS = (
    "BSH", "BSND", "BNSD", "BNSD_BSND", "TND", "NTD", "BSH_BNSD", "BSND_BNSD", "NTD_TND",
)  # fmt: skip

#: of them, those of the head sizes 64 and 128 alone
_NARROW = ("NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD")

#: the largest head size, and that of the split-fuse kernel
_MAX, _FUSED_MAX = 512, 256

#: (query and key, value): rope halves appended to query and key
_JOINED = (192, 128)


def plain(call: InferArguments) -> bool:
    """Query and caches are of one half-precision dtype; layout NSD has the older rules."""
    same = call.query.dtype in FLOATS and call.key.dtype == call.query.dtype
    return same and call.input_layout != "NSD"


def fused(call: InferArguments) -> bool:
    """TND goes to the split-fuse kernel, which takes every head size up to 256 (A2 and A3)."""
    if call.input_layout != "TND" or call.query_rope is not None or call.quant_scale2 is not None:
        return False
    if call.sparse_mode not in (DEFAULT, RIGHT_DOWN, BAND):
        return False
    size = call.queries[3]
    sink = call.learnable_sink
    if sink is not None and size == 64 and sink.dtype == torch.bfloat16:
        return False
    if call.kv_heads == call.num_heads:
        exact = not (call.query.dtype == torch.bfloat16 and call.inner_precise == 1)
        routed = exact and not (call.sparse_mode == DEFAULT and call.atten_mask is not None)
    else:
        routed = call.inner_precise == 0
    if not routed or size > _FUSED_MAX or call.value_size != size:
        return False
    if not call.paged:
        return True
    blocks = call.block_size % 16 == 0 and call.block_size <= 512
    return blocks and (call.key.dim() == 3 or (call.key.dim() == 5 and size not in (64, 128)))


def heads(call: InferArguments) -> None:
    """Head sizes of query, key and value by layout."""
    size, value = call.queries[3], call.value_size
    if not call.paged:
        key = sizes(call.key, call.layout, call.kv_heads)[3]
        must.hold(key == size, "key", f"of head size {size}", key, ErrCode.PARAM)
        for name in ("key", "value") if call.layout == "BSH" else ():
            width = getattr(call, name).shape[2]
            whole = width % call.kv_heads == 0
            must.hold(whole, name, f"of {call.kv_heads} whole heads", width, ErrCode.PARAM)
    if call.query_rope is not None:
        must.hold(value == size, "value", f"of head size {size}", value, ErrCode.PARAM)
        return
    must.choice("input_layout", call.input_layout, LAYOUTS)
    must.hold(0 < value <= _MAX, "value", f"of a head size up to {_MAX}", value, ErrCode.PARAM)
    if value != size:
        _joined(call, size, value)
    elif call.input_layout in _NARROW:
        _sizes(call, (64, 128))
    elif call.input_layout == "TND":
        _ragged(call)
    elif call.input_layout == "BNSD_BSND" or (not call.decode and _family() != "A5"):
        must.hold(size % 16 == 0, "query", "of a head size divisible by 16", size, ErrCode.PARAM)
    if call.paged and call.key.dim() == 5 and not (call.ragged and fused(call)):
        _sizes(call, (64, 128), " in NZ pages")


def _family() -> str:
    return chips.current().family


def _sizes(call: InferArguments, allowed: tuple[int, ...], where: str = "") -> None:
    size = call.queries[3]
    expected = f"of head size {must.one_of(allowed)}{where} for layout {call.input_layout}"
    must.hold(size in allowed, "query", expected, size, ErrCode.PARAM)


def _joined(call: InferArguments, size: int, value: int) -> None:
    """Different head sizes: 192 over 128; on A5 also any two up to 128 that lie in one piece."""
    loose = _family() == "A5" and max(size, value) <= 128 and not call.paged
    loose = loose and call.input_layout not in (*_NARROW, "BNSD_BSND")
    expected = f"of head sizes (query, value) equal or {_JOINED}"
    must.hold((size, value) == _JOINED or loose, "query", expected, (size, value), ErrCode.PARAM)


def _ragged(call: InferArguments) -> None:
    if _family() == "A5":
        return
    if not fused(call):
        _sizes(call, (64, 128, 192))
    elif call.sparse_mode == DEFAULT:
        must.hold(
            call.atten_mask is None,
            call.name("atten_mask"),
            "left out with sparse_mode 0 in TND with fewer key heads than query heads",
            None if call.atten_mask is None else tuple(call.atten_mask.shape),
        )


def block_size(call: InferArguments) -> tuple[bool, str]:
    """Whether the pages' size is one the card takes, and which are."""
    size = call.block_size
    step, most = 16, 1024
    if _family() == "A5" and call.query_rope is None and call.queries[3] not in (64, 128):
        decode = call.queries[2] == 1
        step, most = (16, 512) if decode else (128, 1024)
    return size > 0 and size % step == 0 and size <= most, f"a multiple of {step} up to {most}"


def totals(call: InferArguments) -> None:
    """The last length of TND is the number of tokens; A5 asks it of NTD too."""
    if call.layout != "TND" and not (call.layout == "NTD" and _family() == "A5"):
        return
    given = [("actual_seq_lengths", call.actual_seq_lengths, call.queries[2])]
    if not call.paged:
        tokens = sizes(call.key, call.layout, call.kv_heads)[2]
        given.append(("actual_seq_lengths_kv", call.actual_seq_lengths_kv, tokens))
    for argument, lengths, tokens in given:
        last = lengths[-1] if lengths else None
        if isinstance(last, int) and isinstance(tokens, int):
            expected = f"{tokens}, the number of tokens, at the end"
            must.hold(last == tokens, call.name(argument), expected, last)
