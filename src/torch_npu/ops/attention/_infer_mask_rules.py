"""The documented constraints of sparse modes, masks and biases; see `_infer_rules`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _infer_float_rules as floats
from torch_npu.ops.attention._infer_arguments import (
    ALL,
    BAND,
    DEFAULT,
    LEFT_UP,
    RIGHT_DOWN,
    TEMPLATE,
    TREE,
    InferArguments,
    kv_lengths,
    prefix_length,
    sizes,
    spans,
)
from torch_npu.ops.attention._infer_rules import absent


def mask(
    call: InferArguments, modes: Sequence[int] = (DEFAULT, ALL, LEFT_UP, RIGHT_DOWN, BAND)
) -> None:
    """sparse_mode and the mask it needs."""
    mode, given, name = call.sparse_mode, call.atten_mask, call.name("atten_mask")
    must.choice("sparse_mode", mode, modes)
    must.dtype(name, given, torch.bool, torch.int8, torch.uint8)
    if call.unwindowed and mode != TREE:
        if given is not None and mode in (DEFAULT, ALL):
            _full(call, given, name)
        return
    if mode != DEFAULT:
        must.present(name, given, f"with sparse_mode {mode}")
    if given is None:
        return
    _window(call)
    if mode == TREE:
        _tree(call, given, name)
    elif mode in (LEFT_UP, RIGHT_DOWN, BAND):
        ones = (1,) * max(0, given.dim() - 2)
        must.ndim(name, given, 2, 4)
        must.shape(name, given, (*ones, TEMPLATE, TEMPLATE))
    else:
        _full(call, given, name)


def _window(call: InferArguments) -> None:
    """pre_tokens and next_tokens leave a window (of the modes that read them)."""
    padded = call.query_padding_size is not None or call.kv_padding_size is not None
    if call.sparse_mode not in (DEFAULT, BAND) or (call.sparse_mode == DEFAULT and padded):
        return
    before, after = call.pre_tokens, call.next_tokens
    must.hold(
        -after <= before and max(before, after) >= 0,
        "next_tokens",
        f"at least {-before}, so that a window is left",
        after,
    )


def _full(call: InferArguments, given: torch.Tensor, name: str) -> None:
    must.ndim(name, given, 2, 4)
    flat = given.dim() == 2 and floats.plain(call) and not floats.fused(call)
    narrow = call.query_rope is not None or call.value_size != call.queries[3]
    narrow = narrow or call.input_layout not in ("BSH", "BSND", "BNSD", "BNSD_BSND")
    must.hold(
        not flat or not narrow or chips.current().family == "A5",
        name,
        f"of 3 or 4 dimensions for layout {call.input_layout} and these head sizes",
        tuple(given.shape),
        ErrCode.PARAM,
    )
    rows, columns = token_counts(call)
    if call.incremental and not call.paged and call.kv_padding_size is None:
        columns = max(kv_lengths(call))  # the card asks for no more
    batch = call.batch
    lead = given.shape[:-2] if given.dim() > 2 else ()
    allowed = {2: ((),), 3: ((1,), (batch,)), 4: ((1, 1), (batch, 1))}[given.dim()]
    expected = f"of shape (B or 1, 1, Q_S >= {rows}, KV_S >= {columns})"
    if given.dim() == 2 and call.decode:
        rows = 1 if given.shape[0] == 1 else batch
        expected = f"of shape (B or 1, KV_S >= {columns})"
    fits = lead in allowed and given.shape[-2] >= rows and given.shape[-1] >= columns
    must.hold(fits, name, expected, tuple(given.shape), ErrCode.PARAM)


def token_counts(call: InferArguments) -> tuple[int, int]:
    """The rows and columns that a full mask or a position bias must at least have."""
    _, _, rows, _ = call.queries
    if call.ragged:
        rows = max(length for _, length in spans(call.actual_seq_lengths))
    if call.paged:
        return rows, call.capacity
    if call.ragged:
        return rows, max(kv_lengths(call))
    return rows, prefix_length(call) + sizes(call.key, call.layout, call.kv_heads)[2]


def _tree(call: InferArguments, given: torch.Tensor, name: str) -> None:
    batch, _, rows, _ = call.queries
    if call.ragged:
        total = sum(length**2 for _, length in spans(call.actual_seq_lengths))
        must.shape(name, given, (total,))
    else:
        must.shape(name, given, (batch, rows, rows))
    cached = call.key.dtype == torch.int8 and call.key.dim() == 5
    must.hold(
        call.query_rope is not None or cached,
        "sparse_mode",
        "9 only with query_rope and key_rope, or an int8 NZ cache",
        call.sparse_mode,
    )
    absent(call, "with sparse_mode 9", "pse_shift", "quant_scale2")


def bias(call: InferArguments) -> None:
    """pse_shift."""
    given, name = call.pse_shift, call.name("pse_shift")
    if given is None:
        return
    wanted = torch.float16 if call.query.dtype == torch.int8 else call.query.dtype
    must.dtype(name, given, wanted)
    must.ndim(name, given, 4)
    rows, columns = token_counts(call)
    batch, count, _, size = call.queries
    fits = given.shape[0] in (1, batch) and given.shape[1] == count
    fits = fits and given.shape[2] >= rows and given.shape[3] >= columns
    expected = f"of shape (B or 1, {count}, Q_S >= {rows}, KV_S >= {columns})"
    must.hold(fits, name, expected, tuple(given.shape), ErrCode.PARAM)
    if call.decode:
        must.hold(size % 16 == 0, "query", "of a head size divisible by 16 with pse_shift", size)
