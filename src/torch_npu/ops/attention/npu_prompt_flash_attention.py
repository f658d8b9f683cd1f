"""npu_prompt_flash_attention: attention over whole prompts."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._engine import in_blocks, natively
from torch_npu.ops.attention import _infer_mask_rules as masks
from torch_npu.ops.attention import _infer_quant_rules as quantized
from torch_npu.ops.attention import _infer_rules as rules
from torch_npu.ops.attention._infer import solve
from torch_npu.ops.attention._infer_arguments import (
    BAND,
    DEFAULT,
    RIGHT_DOWN,
    InferArguments,
    empty_outputs,
    sizes,
    spans,
)

#: the names of npu_fused_infer_attention_score -> the names here
_NAMES = {"dequant_scale1": "deq_scale1", "dequant_scale2": "deq_scale2", "scale": "scale_value"}
_CANONICAL = {theirs: ours for ours, theirs in _NAMES.items()}

#: these are the modes 0 to 4 in the card's high-precision arithmetic, which is the only one here
_HIGH_PRECISION = range(10, 15)

#: sequences that the layout TND takes
_MAX_ENDS = 4096

_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", "NSD", "TND")


def _call(query, key, value, options) -> InferArguments:
    kept = {_CANONICAL.get(n, n): v for n, v in options.items() if n != "padding_mask"}
    kept.setdefault("next_tokens", 0)
    if kept.get("sparse_mode", 0) in _HIGH_PRECISION:
        kept["sparse_mode"] -= _HIGH_PRECISION.start
    operator = "npu_prompt_flash_attention"
    return InferArguments(query, key, value, operator=operator, names=_NAMES, prompt=True, **kept)


def _check_310p(call: InferArguments) -> None:
    """What Atlas inference cards leave out."""
    reason = "on 310P"
    must.dtype("query", call.query, torch.float16)
    rules.absent(
        call, reason, "pse_shift", "actual_seq_lengths", "actual_seq_lengths_kv", "quant_scale2"
    )
    batch, _, rows, _ = call.queries
    columns = sizes(call.key, call.layout, call.num_heads)[2]
    must.hold(call.pre_tokens >= rows, "pre_tokens", f"at least {rows} on 310P", call.pre_tokens)
    ahead = call.next_tokens
    fits = ahead == 0 or ahead >= columns
    must.hold(fits, "next_tokens", f"0 or at least {columns} on 310P", ahead)
    must.choice("num_key_value_heads", call.num_key_value_heads, (0, call.num_heads))
    must.choice("sparse_mode", call.sparse_mode, (0,))
    most = 300 if call.layout == "BSH" else 128
    must.hold(batch <= most, "query", f"of at most {most} sequences on 310P", batch)
    must.hold(rows <= 65536, "query", "of at most 65536 tokens on 310P", rows)
    if call.atten_mask is not None:
        must.dtype("atten_mask", call.atten_mask, torch.bool)
        square = rows == columns and rows % 16 == 0
        expected = "left out on 310P unless query and key have as many tokens, a multiple of 16"
        must.hold(square, "atten_mask", expected, (rows, columns))


def _check_ragged(call: InferArguments) -> None:
    """What the layout TND asks for."""
    must.dtype("query", call.query, torch.bfloat16)
    size, depth = call.queries[3], call.value_size
    fits = (size == 192 and depth in (128, 192)) or (size == depth and size in (64, 128))
    expected = "of head sizes 64, 128 or 192, the value's the same or 128 beside 192, in TND"
    must.hold(fits, "query", expected, (size, depth), ErrCode.PARAM)
    grouped = call.num_heads != call.kv_heads
    fits = not (grouped and depth == 192)
    must.hold(fits, "value", "of head size 64 or 128 with grouped heads in TND", depth)
    rules.absent(call, "in TND", "pse_shift", "quant_scale2")
    mode = call.sparse_mode
    must.choice("sparse_mode", mode, (DEFAULT, RIGHT_DOWN, BAND))
    if mode == DEFAULT:
        rules.absent(call, "with sparse_mode 0 in TND", "atten_mask")
    fits = mode != BAND or depth != 192
    must.hold(fits, "sparse_mode", "0 or 3 with a value of head size 192", mode)
    ends = must.present("actual_seq_lengths", call.actual_seq_lengths, "in TND")
    count = len(ends)
    must.hold(count <= _MAX_ENDS, "actual_seq_lengths", f"of at most {_MAX_ENDS} entries", count)
    last = ends[-1]
    expected = f"ending at the rows of query ({call.query.shape[0]})"
    must.hold(last == call.query.shape[0], "actual_seq_lengths", expected, last)
    if mode == RIGHT_DOWN:
        pairs = zip(spans(ends), spans(call.actual_seq_lengths_kv), strict=True)
        fits = all(rows <= columns for (_, rows), (_, columns) in pairs)
        expected = "of sequences of no more queries than keys with sparse_mode 3"
        must.hold(fits, "actual_seq_lengths", expected, list(ends))


@npu_op(
    "npu_prompt_flash_attention(Tensor query, Tensor key, Tensor value, *, Tensor? "
    "padding_mask=None, Tensor? atten_mask=None, Tensor? pse_shift=None, int[]? "
    "actual_seq_lengths=None, Tensor? deq_scale1=None, Tensor? quant_scale1=None, Tensor? "
    "deq_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, int "
    "num_heads=1, float scale_value=1.0, int pre_tokens=2147483647, int next_tokens=0, str "
    'input_layout="BSH", int num_key_value_heads=0, int[]? actual_seq_lengths_kv=None, int '
    "sparse_mode=0) -> Tensor",
    core="MIX_AIC",
)
def npu_prompt_flash_attention(query, key, value, **options):
    r"""Attention over whole prompts.

    $$ y = \mathrm{softmax}(scale\_value \cdot Q K^T + pse\_shift,\ masked) \cdot V $$

    Args:
        query, key, value: float16, bfloat16 (not on 310P) or int8 (not on 310P), all the same, in
            the layout below; key and value have `num_key_value_heads` heads.
        padding_mask: reserved.
        atten_mask: bool, int8 or uint8; 1 hides. sparse_mode 0 and 1: (Q_S, KV_S), (B or 1, Q_S,
            KV_S) or (B or 1, 1, Q_S, KV_S); 2, 3 and 4: the causal template triu(ones(2048, 2048),
            1).
        pse_shift: (B or 1, N, Q_S, KV_S); added to the scaled scores. The query's dtype, float16
            for int8.
        actual_seq_lengths, actual_seq_lengths_kv: valid tokens, one number or one a sequence;
            running sums for TND.
        deq_scale1, quant_scale1, deq_scale2: int8 arithmetic, one value each: of Q K^T, of the
            exponentials (row maximum 1) before they round to int8, of their product with V.
        quant_scale2, quant_offset2: int8 output, round(y * scale + offset), one value or N * D.
        num_heads, num_key_value_heads: heads of query and of key and value (0: the same).
        scale_value: the factor of Q K^T.
        pre_tokens, next_tokens, sparse_mode: 0: the mask, between row - pre_tokens and row +
            next_tokens (by default nothing ahead); 1: the mask; 2: causal from the upper left; 3:
            causal to the lower right; 4: a band counted from the lower right; 10 to 14: the same
            in high precision. Without a mask, mode 0 hides nothing.
        input_layout: BSH, BSND, BNSD, NSD, TND, or BNSD_BSND (the output's layout second).

    Returns:
        The query's shape and layout (but BNSD_BSND) and dtype; int8 with quant_scale2, float16 for
        an int8 query without.

    Constraints:
        Rows that attend to nothing, and rows behind a sequence's length, are 0. D is at most 512; B
        at most 65536, or 128 where D is not a multiple of 16. TND takes bfloat16, head sizes of 64, 128
        and 192 and the modes 0 (without a mask), 3 and 4.
    """
    return solve(_call(query, key, value, options), in_blocks)[0]


@npu_prompt_flash_attention.check
def _(query, key, value, padding_mask, **options):
    must.unset("padding_mask", padding_mask)
    call = _call(query, key, value, options)
    rules.product(call, "A2", "A3", "310P")
    rules.layout(call, _LAYOUTS)
    must.dtype("query", query, *rules.FLOATS, torch.int8)
    must.same_dtype("key", key, "query", query)
    if chips.current().family == "310P":
        _check_310p(call)
    rules.heads(call)
    rules.caches(call, tokens=False)
    rules.extents(call, align=1, tokens=False)
    rules.lengths(call)
    if call.ragged:
        _check_ragged(call)
    masks.mask(call)
    masks.bias(call)
    quantized.integers(call)
    quantized.output(call)


@npu_prompt_flash_attention.native
def _(query, key, value, **options):
    return solve(_call(query, key, value, options), natively)[0]


@npu_prompt_flash_attention.meta
def _(query, key, value, **options):
    return empty_outputs(_call(query, key, value, options))[0]


npu_prompt_flash_attention.samples = [
    Sample(
        lambda make: tuple(
            make(2, n, s, 16, dtype=torch.float16) for n, s in ((4, 5), (2, 9), (2, 9))
        ),
        {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25, "input_layout": "BNSD"},
        "grouped heads",
    ),
    Sample(
        lambda make: tuple(make(2, 6, 64, dtype=torch.bfloat16) for _ in range(3)),
        lambda make: {
            "num_heads": 4,
            "atten_mask": make(6, 6, dtype=torch.bool),
            "next_tokens": 6,
        },
        "masked",
    ),
    Sample(
        lambda make: tuple(make(2, 4, 5, 32, dtype=torch.float16) for _ in range(3)),
        lambda make: {
            "num_heads": 4,
            "input_layout": "BNSD_BSND",
            "actual_seq_lengths": [5, 3],
            "quant_scale2": make(1, low=9, high=9.5),
        },
        "int8 output",
    ),
]
