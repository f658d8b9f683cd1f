"""npu_incre_flash_attention: attention of one new token over a cache."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._engine import in_blocks, natively
from torch_npu.ops.attention import _infer_mask_rules as masks
from torch_npu.ops.attention import _infer_quant_rules as quantized
from torch_npu.ops.attention import _infer_rules as rules
from torch_npu.ops.attention._infer import solve
from torch_npu.ops.attention._infer_arguments import InferArguments, empty_outputs
from torch_npu.ops.attention._infer_once import once

#: the names of npu_fused_infer_attention_score -> the names here
_NAMES = {"actual_seq_lengths_kv": "actual_seq_lengths", "scale": "scale_value"}
_CANONICAL = {theirs: ours for ours, theirs in _NAMES.items()}


def _call(query, key, value, options) -> InferArguments:
    kept = {_CANONICAL.get(n, n): v for n, v in options.items() if n != "padding_mask"}
    kept.setdefault("inner_precise", 1)
    operator = "npu_incre_flash_attention"
    return InferArguments(
        query, key, value, operator=operator, names=_NAMES, incremental=True, **kept
    )


def _check_310p(call: InferArguments) -> None:
    """What Atlas inference cards leave out."""
    must.dtype("query", call.query, torch.float16)
    rules.absent(call, "on 310P", "pse_shift", "quant_scale2")
    batch, count, _, size = call.queries
    must.hold(batch <= 256, "query", "of at most 256 sequences on 310P", batch)
    step = 32 if call.key.dtype == torch.int8 else 16
    must.hold(size % step == 0, "query", f"of a head size divisible by {step} on 310P", size)
    if count == call.kv_heads:
        return
    group = count // call.kv_heads
    must.hold(group <= 32, "num_key_value_heads", f"at least {count} / 32 on 310P", call.kv_heads)
    must.hold(size <= 128, "query", "of a head size up to 128 with grouped heads on 310P", size)
    allowed = ("BSH", "BSND") if call.paged else ("BNSD",)
    given = call.input_layout
    expected = f"{must.one_of(allowed, quoted=True)} with grouped heads on 310P"
    must.hold(given in allowed, "input_layout", expected, given)


def _paged(make):
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32).to(make(1).device)
    return {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "actual_seq_lengths": [20, 32],
        "block_table": table,
        "block_size": 16,
    }


@npu_op(
    "npu_incre_flash_attention(Tensor query, Tensor key, Tensor value, *, Tensor? "
    "padding_mask=None, Tensor? atten_mask=None, Tensor? pse_shift=None, SymInt[]? "
    "actual_seq_lengths=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? dequant_scale1=None, Tensor? quant_scale1=None, "
    "Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, "
    "Tensor? kv_padding_size=None, int num_heads=1, float scale_value=1.0, str "
    'input_layout="BSH", int num_key_value_heads=0, int block_size=0, int inner_precise=1) '
    "-> Tensor",
    core="MIX_AIC",
)
def npu_incre_flash_attention(query, key, value, **options):
    r"""Attention of one new token a sequence over its cache.

    $$ y = \mathrm{softmax}(scale\_value \cdot Q K^T + pse\_shift,\ masked) \cdot V $$

    Args:
        query: float16 or bfloat16 (not on 310P), one token a sequence in the layout below.
        key, value: the caches, the query's dtype or int8, `num_key_value_heads` heads; contiguous
            in the query's layout, or in pages when `block_table` is given: (blocks, block_size, H),
            or (blocks, N, block_size, D) for BNSD.
        padding_mask: reserved.
        atten_mask: bool, int8 or uint8; 1 hides. (B, KV_S), (B or 1, 1, KV_S) or (B or 1, 1, 1,
            KV_S), without pages and padding of the longest length at least.
        pse_shift: (B or 1, N, 1, KV_S), the query's dtype; added to the scaled scores. Not on 310P.
        actual_seq_lengths: valid tokens of the caches, one number or one a sequence.
        antiquant_scale, antiquant_offset: an int8 cache as (cache + offset) * scale; the key's
            half, then the value's: (2, N, 1, D), (2, N, D), (2, H), or (2,).
        block_table, block_size: the block of each `block_size` tokens, int32 (B, blocks a
            sequence).
        dequant_scale1, quant_scale1, dequant_scale2: integer products, which need an int8 query:
            not supported.
        quant_scale2, quant_offset2: int8 output, round(y * scale + offset), one value or N * D. Not
            on 310P.
        kv_padding_size: int64: tokens behind the last valid one; sequences then end there. A
            sequence that would start before the cache gives 0.
        num_heads, num_key_value_heads: heads of query and caches (0: the same).
        scale_value: the factor of Q K^T.
        input_layout: BSH, BSND or BNSD.
        inner_precise: 0 or 1; the emulation always accumulates in fp32.

    Returns:
        The query's shape and dtype; int8 with quant_scale2. Sequences without a valid token are 0.
    """
    return solve(_call(query, key, value, options), in_blocks)[0]


def _check(call: InferArguments) -> None:
    query, key = call.query, call.key
    rules.product(call, "A2", "A3", "310P")
    rules.layout(call, ("BSH", "BSND", "BNSD"))
    must.dtype("query", query, *rules.FLOATS)
    must.dtype("key", key, query.dtype, torch.int8)
    must.hold(call.queries[2] == 1, "query", "of one token a sequence", tuple(query.shape))
    rules.heads(call, most=None)
    if chips.current().family == "310P":
        _check_310p(call)
    rules.caches(call, tokens=False)
    rules.extents(call, align=1, tokens=False)
    rules.lengths(call)
    rules.paged(call)
    rules.padding(call)
    masks.mask(call)
    masks.bias(call)
    must.choice("inner_precise", call.inner_precise, (0, 1))
    quantized.integers(call)
    quantized.output(call)
    quantized.cache(call)


_checked = once(_check, _call)


@npu_incre_flash_attention.check
def _(query, key, value, padding_mask, **options):
    must.unset("padding_mask", padding_mask)
    _checked(query, key, value, options)


@npu_incre_flash_attention.native
def _(query, key, value, **options):
    return solve(_call(query, key, value, options), natively)[0]


@npu_incre_flash_attention.meta
def _(query, key, value, **options):
    return empty_outputs(_call(query, key, value, options))[0]


npu_incre_flash_attention.samples = [
    Sample(
        lambda make: tuple(make(2, s, 64, dtype=torch.float16) for s in (1, 9, 9)),
        {"num_heads": 4, "scale_value": 0.25, "actual_seq_lengths": [9, 4]},
        "contiguous",
    ),
    Sample(
        lambda make: tuple(
            make(*s, dtype=torch.bfloat16) for s in ((2, 1, 64), (4, 16, 32), (4, 16, 32))
        ),
        _paged,
        "paged",
    ),
    Sample(
        lambda make: (
            make(2, 4, 1, 32, dtype=torch.float16),
            *(make(2, 4, 8, 32, dtype=torch.int8, low=-9, high=9) for _ in range(2)),
        ),
        lambda make: {
            "num_heads": 4,
            "input_layout": "BNSD",
            "antiquant_scale": make(2, 4, 1, 32, dtype=torch.float16),
        },
        "int8 cache",
    ),
]
