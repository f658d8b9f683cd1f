"""npu_moe_init_routing_v2: tokens expert by expert, with capacity, ranges and quantization."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import inside as must_lie_inside
from torch_npu.ops.moe import _init_routing_rules as rules
from torch_npu.ops.moe import _row_quant as quant
from torch_npu.ops.moe._routing import inverse_permutation, take_rows

CUMSUM, COUNT, KEY_VALUE = 0, 1, 2
GATHER, SCATTER = 0, 1
_NO_EXPERT = 2**31 - 1


def _range(active_expert_range, expert_num):
    return tuple(active_expert_range) if active_expert_range else (0, expert_num)


def _statistics(flat, inside, start, end, expert_num, kind):
    """Tokens of each expert of the range, and the result that `expert_tokens_num_type` asks for."""
    span = end - start
    counts = torch.zeros(span + 1, dtype=torch.int64, device=flat.device)
    place = torch.where(inside, flat - start, span).long()
    counts = counts.scatter_add(0, place, torch.ones_like(place))[:span]
    if kind == CUMSUM:
        return counts, counts.cumsum(0)
    if kind == COUNT:
        return counts, counts.clone()
    used = counts > 0
    order = torch.argsort((~used).to(torch.uint8), stable=True)
    pairs = torch.stack((order + start, counts[order]), dim=1) * used[order].unsqueeze(1)
    return counts, torch.nn.functional.pad(pairs, (0, 0, 0, expert_num - span))


def _quantize(rows, mode, scale, offset, half):
    """`_row_quant.quantize`, with the C++ kernel for dynamic int8."""
    if mode != quant.DYNAMIC or rows.size(1) == 0:
        return quant.quantize(rows, mode, scale, offset, half)
    smooth = rows if scale is None else rows * scale
    return torch.ops.softnpu.dynamic_quant(smooth, None, None, False, False)[:2]


def _route(
    take,
    quantize,
    x,
    expert_idx,
    scale=None,
    offset=None,
    active_num=-1,
    expert_capacity=-1,
    expert_num=-1,
    drop_pad_mode=0,
    expert_tokens_num_type=0,
    expert_tokens_num_flag=False,
    quant_mode=-1,
    active_expert_range=(),
    row_idx_type=0,
):
    """The operator, with `take(rows, index, present)` and `quantize(rows, ...)` to make the rows."""
    old = chips.current().family == "310P"
    if old:
        drop_pad_mode, expert_tokens_num_type = 0, CUMSUM
    start, end = _range(active_expert_range, expert_num)
    top_k, pairs = expert_idx.size(1), expert_idx.numel()
    flat = expert_idx.reshape(-1)
    inside = (flat >= start) & (flat < end)
    expert, order = torch.sort(torch.where(flat < start, _NO_EXPERT, flat), stable=True)
    counts, statistics = _statistics(flat, inside, start, end, expert_num, expert_tokens_num_type)
    if not expert_tokens_num_flag and not old:
        statistics = torch.zeros_like(statistics)

    if drop_pad_mode == 1:
        # the place of a pair among its expert's, and from it the slot, or none
        taking = inside.index_select(0, order)
        whose = torch.where(taking, expert, 0).long()
        before = counts.cumsum(0) - counts
        rank = torch.arange(pairs, device=x.device) - before.index_select(0, whose)
        taking = taking & (rank < expert_capacity)
        slots = expert_num * expert_capacity
        slot = torch.where(taking, whose * expert_capacity + rank, slots)
        pair_of = torch.full((slots + 1,), -1, dtype=torch.int64, device=x.device)
        pair_of = pair_of.scatter(0, slot, order)[:slots]
        row_idx = torch.full_like(order, -1)
        row_idx = row_idx.scatter(0, order, torch.where(taking, slot, -1))
        present, pair = pair_of >= 0, pair_of.clamp(min=0)
        owner = torch.arange(slots, device=x.device) // max(expert_capacity, 1)
        leading: tuple[int, ...] = (expert_num, expert_capacity)
    else:
        rows = pairs if active_num <= 0 else min(active_num, pairs)
        pair, owner = order[:rows], expert[:rows].long()
        present = inside.index_select(0, pair)
        if row_idx_type == SCATTER:
            row_idx = order
        else:
            row_idx = torch.where(inside, inverse_permutation(order), -1)
        leading = (rows,)

    source = pair // max(top_k, 1)
    raw = x.view(torch.uint8) if x.element_size() == 1 and x.dtype != torch.int8 else x
    taken = take(raw, source, present)
    found = None
    if quant_mode == quant.NONE:
        expanded = taken.view(x.dtype)
        if scale is not None:
            raw = scale.view(torch.uint8) if scale.element_size() == 1 else scale
            found = take(raw, source, present).view(scale.dtype)
    else:
        if quant_mode in (quant.DYNAMIC, quant.INT4) and scale is not None:
            if x.size(0) == 0:
                scale = None
            elif scale.size(0) > 1:
                scale = take(scale, owner - start, present)
        half = x.dtype == torch.float16
        expanded, found = quantize(taken.float(), quant_mode, scale, offset, half)
    if old:
        found = torch.nn.functional.pad(counts, (start, expert_num - end)).to(torch.int32)
        statistics = statistics.to(torch.int32)
    elif found is None:
        found = torch.zeros(present.numel(), dtype=torch.float32, device=x.device)
    return (
        expanded.reshape(*leading, expanded.size(-1)),
        row_idx.to(torch.int32),
        statistics,
        found,
    )


def _copied(
    x,
    expert_idx,
    scale=None,
    offset=None,
    active_num=-1,
    expert_capacity=-1,
    expert_num=-1,
    drop_pad_mode=0,
    expert_tokens_num_type=0,
    expert_tokens_num_flag=False,
    quant_mode=-1,
    active_expert_range=(),
    row_idx_type=0,
):
    """The commonest case, sorted and copied in C++: no capacity, no quantization; None for any other."""
    if drop_pad_mode == 1 or quant_mode != quant.NONE or chips.current().family == "310P":
        return None
    start, end = _range(active_expert_range, expert_num)
    pairs = expert_idx.numel()
    rows = pairs if active_num <= 0 else min(active_num, pairs)
    source, order, place = torch.ops.softnpu.route_pairs(
        expert_idx, expert_idx.size(1), start, end, rows
    )
    if expert_tokens_num_flag:
        flat = expert_idx.reshape(-1)
        inside = (flat >= start) & (flat < end)
        _, statistics = _statistics(flat, inside, start, end, expert_num, expert_tokens_num_type)
    else:
        shape = (expert_num, 2) if expert_tokens_num_type == KEY_VALUE else (end - start,)
        statistics = torch.zeros(shape, dtype=torch.int64, device=x.device)
    take = torch.ops.softnpu.take_rows
    if scale is None:
        found = torch.zeros(rows, dtype=torch.float32, device=x.device)
    else:
        found = take(scale, source, None)
    row_idx = order.to(torch.int32) if row_idx_type == SCATTER else place
    return take(x, source, None), row_idx, statistics, found


@npu_op(
    "npu_moe_init_routing_v2(Tensor x, Tensor expert_idx, *, Tensor? scale=None, "
    "Tensor? offset=None, int active_num=-1, int expert_capacity=-1, int expert_num=-1, "
    "int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, "
    "int quant_mode=-1, int[2] active_expert_range=[], int row_idx_type=0, int? x_dtype=None) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
def npu_moe_init_routing_v2(
    x,
    expert_idx,
    scale,
    offset,
    active_num,
    expert_capacity,
    expert_num,
    drop_pad_mode,
    expert_tokens_num_type,
    expert_tokens_num_flag,
    quant_mode,
    active_expert_range,
    row_idx_type,
):
    r"""Sorts the (token, expert) pairs by expert, ties as they stand, and copies the tokens.

    $$ expert, pair = \mathrm{sort}(expert\_idx), \qquad expanded\_x_i = q(x_{pair_i \div K}) $$

    Pairs whose expert is not in `active_expert_range` (-1 is never in it) take no part. With
    `drop_pad_mode=1` each expert has `expert_capacity` rows: what is too much is dropped, what is
    missing is zeros.

    Args:
        x: the tokens, (N, H); float16, bfloat16, float32 or int8; on Ascend 950, without
            quantization, also 8-bit floats, or bytes that `x_dtype` names.
        expert_idx: the experts of each token, (N, K), int32, in [-1, expert_num].
        scale: without quantization (N), moved along with the tokens (float8 tokens:
            (N, ceil(H / 64), 2), float8_e8m0fnu); static (1); dynamic (1, H) or
            (end - start, H); float32.
        offset: static quantization, (1), float32.
        active_num: at most how many rows the result holds (-1 and 0: all); for drop_pad_mode 0.
        expert_capacity: rows of each expert for drop_pad_mode 1, 1 to N.
        expert_num: how many experts there are, up to 10240 (5120 for type 2).
        drop_pad_mode: 0 all rows, 1 rows by capacity.
        expert_tokens_num_type: 0 cumulative counts, 1 counts, 2 (expert, count) pairs of the
            experts that have tokens.
        expert_tokens_num_flag: whether the third result is filled.
        quant_mode: -1 none, 0 static int8, 1 dynamic int8; on Ascend 950 also
            2/3 MXFP8 (e5m2/e4m3), 16/17 the same with the block's largest value
            at least 1e-4, 4/5/14/15 these with 128 columns a scale, 6 HiFloat8,
            7 HiFloat8 per tensor, 8 HiFloat8 per token, 9 MXFP4,
            11/12 float8 by 128 columns, 13 dynamic int4.
        active_expert_range: [start, end), empty for all.
        row_idx_type: 0 where each pair went, 1 which pair each row is.
        x_dtype: what the bytes of `x` are (hifloat8, float4_e2m1fn_x2), or int4 for quant_mode 13.

    Returns:
        expanded_x, (N * K, H), (min(active_num, N * K), H) or (expert_num, expert_capacity, H),
        zeros behind the pairs that take part. expanded_row_idx, (N * K), int32, for type 0
        with -1 for pairs without a row. The counts, int64, (end - start) or (expert_num, 2),
        zeros unless `expert_tokens_num_flag`; with drop_pad_mode 1 those before dropping.
        expanded_scale: the scales of the rows, zeros where there are none.

    Constraints:
        drop_pad_mode 1 needs the whole range, row_idx_type 0, and type 1 for the counts.
        On the Atlas inference series: float16 and float32, no quantization, no dropping; the counts
        are cumulative and int32, and the fourth result holds the tokens of each expert, int32.

    Differs from upstream:
        Where upstream leaves memory unset (rows behind the last pair, results that are not asked
        for) there are zeros.
    """
    return _route(
        take_rows, quant.quantize, x, expert_idx, scale, offset, active_num, expert_capacity,
        expert_num, drop_pad_mode, expert_tokens_num_type, expert_tokens_num_flag, quant_mode,
        active_expert_range, row_idx_type,
    )  # fmt: skip


@npu_moe_init_routing_v2.check
def _(
    x,
    expert_idx,
    scale,
    offset,
    active_num,
    expert_capacity,
    expert_num,
    drop_pad_mode,
    expert_tokens_num_type,
    expert_tokens_num_flag,
    quant_mode,
    active_expert_range,
    row_idx_type,
    x_dtype,
):
    family = chips.current().family
    must.choice("drop_pad_mode", drop_pad_mode, (0, 1))
    must.choice("expert_tokens_num_type", expert_tokens_num_type, (CUMSUM, COUNT, KEY_VALUE))
    must.choice("row_idx_type", row_idx_type, (GATHER, SCATTER))
    must.choice("quant_mode", quant_mode, rules.modes(family))
    must.ndim("x", x, 2)
    rules.check_x(x, quant_mode, x_dtype)
    must.dtype("expert_idx", expert_idx, torch.int32)
    must.shape("expert_idx", expert_idx, (x.size(0), None))
    most = 5120 if expert_tokens_num_type == KEY_VALUE else 10240
    expected = f"within [1, {most}]" if family == "A5" else "positive"
    fits = expert_num > (-1 if family == "310P" else 0)
    fits = fits and (family != "A5" or expert_num <= most)
    must.hold(fits, "expert_num", expected, expert_num)
    length = len(active_expert_range)
    must.hold(length in (0, 2), "active_expert_range", "two numbers or none", f"{length} of them")
    start, end = _range(active_expert_range, expert_num)
    if length:
        given = [start, end]
        expected = f"[start, end] with 0 <= start < end <= {expert_num}"
        must.hold(0 <= start < end <= expert_num, "active_expert_range", expected, given)
    must.hold(end <= most, "active_expert_range", f"of an end up to {most}", [start, end])
    if family == "A5":
        rules.check_newest(
            x, expert_idx, active_num, expert_tokens_num_flag, drop_pad_mode, quant_mode
        )
    rules.check_scale(x, scale, offset, quant_mode, end - start, x_dtype)
    if drop_pad_mode == 1 and family != "310P":
        tokens = x.size(0)
        fits = 0 < expert_capacity <= max(tokens, 1)
        must.hold(fits, "expert_capacity", f"within [1, {tokens}]", expert_capacity)
        whole = (start, end) == (0, expert_num)
        expected = f"[0, {expert_num}] with drop_pad_mode=1"
        must.hold(whole, "active_expert_range", expected, [start, end])
        must.hold(row_idx_type == GATHER, "row_idx_type", "0 with drop_pad_mode=1", row_idx_type)
        if expert_tokens_num_flag:
            counted = expert_tokens_num_type == COUNT
            expected = "1 with drop_pad_mode=1"
            must.hold(counted, "expert_tokens_num_type", expected, expert_tokens_num_type)
        must.hold(
            quant_mode in (quant.NONE, quant.STATIC, quant.DYNAMIC),
            "quant_mode",
            "-1, 0 or 1 with drop_pad_mode=1",
            quant_mode,
        )
    else:
        must.hold(active_num >= -1, "active_num", "at least -1", active_num)
    must_lie_inside("expert_idx", expert_idx, expert_num + 1, low=-1)


@npu_moe_init_routing_v2.native
def _(x, expert_idx, x_dtype, **options):
    done = _copied(x, expert_idx, **options)
    if done is None:
        done = _route(torch.ops.softnpu.take_rows, _quantize, x, expert_idx, **options)
    return done


npu_moe_init_routing_v2.samples = [
    Sample(
        lambda make: (make(6, 8), make(6, 2, dtype=torch.int32, low=0, high=4)),
        {"expert_num": 4, "expert_tokens_num_flag": True, "expert_tokens_num_type": 1},
    ),
    Sample(
        lambda make: (make(6, 8), make(6, 2, dtype=torch.int32, low=-1, high=8)),
        lambda make: {
            "scale": make(6), "expert_num": 8, "active_expert_range": [2, 6], "active_num": 7,
            "expert_tokens_num_flag": True, "expert_tokens_num_type": 2, "row_idx_type": 1,
        },
        name="a range of experts",
    ),
    Sample(
        lambda make: (
            make(6, 8, dtype=torch.float16), make(6, 2, dtype=torch.int32, low=0, high=4)
        ),
        {
            "expert_num": 4, "drop_pad_mode": 1, "expert_capacity": 3,
            "expert_tokens_num_flag": True, "expert_tokens_num_type": 1,
        },
        name="capacity",
    ),
    Sample(
        lambda make: (
            make(6, 8, dtype=torch.bfloat16), make(6, 2, dtype=torch.int32, low=0, high=4)
        ),
        lambda make: {"scale": make(4, 8), "expert_num": 4, "quant_mode": 1},
        name="dynamic int8",
    ),
    Sample(
        lambda make: (make(6, 8), make(6, 2, dtype=torch.int32, low=0, high=4)),
        lambda make: {
            "scale": make(1, low=9, high=90), "offset": make(1), "expert_num": 4,
            "quant_mode": 0,
        },
        name="static int8",
    ),
]  # fmt: skip
