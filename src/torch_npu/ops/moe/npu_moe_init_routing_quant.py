"""npu_moe_init_routing_quant: tokens sorted by expert, quantized to int8."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import first_bad
from torch_npu.ops._shared._rounding import saturate

STATIC, DYNAMIC = 0, 1
CUMSUM, COUNT = 1, 2


def _counts(experts, expert_num):
    """How many pairs each expert has; experts past the last do not count."""
    place = experts.clamp(max=expert_num)
    ones = torch.ones_like(place, dtype=torch.int32)
    counts = ones.new_zeros(expert_num + 1).scatter_add(0, place, ones)
    return counts[:-1]


def _cut(x):
    """float32 cut to the bits of float16, toward zero."""
    half = x.half()
    bits = half.view(torch.int16)  # magnitude and sign: one less is the next number toward zero
    return torch.where(half.abs() > x.abs(), (bits - 1).view(torch.float16), half).float()


def _quantized(rows, experts, scale, offset, mode):
    """int8 rows, and the scale of each in dynamic quantization, else None.

    Rounds as CANN's kernels (moe_init_routing_quant_v2, moe_v2_gather_quant.h and moe_v2_gather_dynamic_quant.h): static
    in float16; dynamic quotients are cut to float16, then halves go away from zero.
    """
    if mode == STATIC:
        scaled = rows.half() * scale.half() + offset.half()
        return saturate(scaled.float(), torch.int8), None
    rows = rows.float()
    if scale is not None:
        rows = rows * (
            scale if scale.shape[0] == 1 else scale[experts.clamp(max=scale.shape[0] - 1)]
        )
    top = rows.abs().amax(-1, keepdim=True) / 127
    q = saturate(_cut(rows / torch.where(top == 0, 1.0, top)), torch.int8, "round")
    return q, top.squeeze(-1)


@npu_op(
    "npu_moe_init_routing_quant(Tensor x, Tensor expert_idx, *, Tensor? scale=None, "
    "Tensor? offset=None, int active_num=1024, int expert_capacity=0, int expert_num=256, "
    "int drop_pad_mode=0, int expert_tokens_num_mode=0, "
    "bool expert_tokens_before_capacity_flag=False, int quant_mode=1)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def npu_moe_init_routing_quant(
    x,
    expert_idx,
    scale,
    offset,
    active_num,
    expert_capacity,
    expert_num,
    drop_pad_mode,
    expert_tokens_num_mode,
    expert_tokens_before_capacity_flag,
    quant_mode,
):
    r"""Copies each token once for each of its experts, sorted by expert, and quantizes the copies.

    Statically $y = \mathrm{round}(x \cdot scale + offset)$; dynamically each copy has a scale of its own,
    $s = \max |x \cdot scale_e| / 127$ and $y = \mathrm{round}(x \cdot scale_e / s)$.

    Args:
        x: (T, H) tokens; float16, bfloat16 or float32.
        expert_idx: (T, K), int32: the experts of each token.
        scale: static: (1); dynamic: None, (1, H), or (expert_num, H), one row for each expert; float32.
        offset: static: (1), float32.
        active_num: without dropping, how many copies are kept at most; 0 keeps all.
        expert_capacity: with dropping, how many tokens an expert takes, 1 to T.
        expert_num: how many experts there are.
        drop_pad_mode: 0 keeps copies in order; 1 gives each expert `expert_capacity` places: further tokens are
            dropped, free places are 0.
        expert_tokens_num_mode: without dropping, 1 also gives running totals of the experts' tokens, 2 their numbers.
        expert_tokens_before_capacity_flag: with dropping, also the numbers of tokens before it.
        quant_mode: 0 static, 1 dynamic.

    Returns:
        The int8 copies, (T * K, H) or fewer rows by `active_num`, or (expert_num, expert_capacity, H); int32
        (T * K), the place of each pair of token and choice among them (-1 where dropped); the counts of
        `expert_tokens_num_mode` and of `expert_tokens_before_capacity_flag`, int32 (expert_num); and the scales
        of the copies in float32. Those that are not asked for are None.
    """
    tokens, choices = expert_idx.shape
    flat = expert_idx.flatten().long()
    order = torch.argsort(flat, stable=True)
    place = torch.empty_like(order).scatter(
        0, order, torch.arange(tokens * choices, device=x.device)
    )
    sorted_experts = flat[order]
    q, top = _quantized(x[order // max(choices, 1)], sorted_experts, scale, offset, quant_mode)
    if drop_pad_mode == 0:
        kept = min(tokens * choices, active_num) if active_num > 0 else tokens * choices
        counts = None
        if expert_tokens_num_mode:
            counts = _counts(flat, expert_num)
            if expert_tokens_num_mode == CUMSUM:
                counts = counts.cumsum(0).to(torch.int32)
        return q[:kept], place.to(torch.int32), counts, None, top if top is None else top[:kept]
    counts = _counts(flat, expert_num)
    starts = (counts.cumsum(0) - counts).long()
    rank = torch.arange(tokens * choices, device=x.device) - starts[sorted_experts]
    slots = expert_num * expert_capacity
    slot = torch.where(rank < expert_capacity, sorted_experts * expert_capacity + rank, slots)
    expanded = q.new_zeros(slots + 1, x.shape[1]).index_copy(0, slot, q)[:-1]
    row = torch.empty_like(slot).scatter(0, order, torch.where(slot == slots, -1, slot))
    if quant_mode == DYNAMIC:
        top = top.new_zeros(slots + 1).index_copy(0, slot, top)[:-1]
    before = counts if expert_tokens_before_capacity_flag else None
    expanded = expanded.view(expert_num, expert_capacity, x.shape[1])
    return expanded, row.to(torch.int32), None, before, top


@npu_moe_init_routing_quant.check
def _(
    x,
    expert_idx,
    scale,
    offset,
    active_num,
    expert_capacity,
    expert_num,
    drop_pad_mode,
    expert_tokens_num_mode,
    quant_mode,
):
    must.dtype("x", x, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("x", x, 2)
    must.dtype("expert_idx", expert_idx, torch.int32)
    must.shape("expert_idx", expert_idx, (x.shape[0], None))
    must.choice("drop_pad_mode", drop_pad_mode, (0, 1))
    must.choice("quant_mode", quant_mode, (STATIC, DYNAMIC))
    must.choice("expert_tokens_num_mode", expert_tokens_num_mode, (0, CUMSUM, COUNT))
    must.hold(active_num >= 0, "active_num", "0 or positive", active_num)
    must.dtype("scale", scale, torch.float32)
    must.dtype("offset", offset, torch.float32)
    if quant_mode == STATIC:
        must.present("scale", scale, "for static quantization")
        must.present("offset", offset, "for static quantization")
        must.shape("scale", scale, (1,))
        must.shape("offset", offset, (1,))
    elif scale is not None:
        allowed = ((1, x.shape[1]), (expert_num, x.shape[1]))
        fits = tuple(scale.shape) in allowed
        must.hold(fits, "scale", f"of shape {must.one_of(allowed)}", tuple(scale.shape))
    counted = drop_pad_mode == 1 or expert_tokens_num_mode > 0
    if counted:
        must.hold(expert_num > 0, "expert_num", "positive", expert_num)
    if drop_pad_mode == 1:
        fits = 0 < expert_capacity <= x.shape[0]
        must.hold(fits, "expert_capacity", f"from 1 to {x.shape[0]}", expert_capacity)
    if must.has_data(expert_idx):
        host = expert_idx.cpu()
        bad = (host < 0) | (host >= expert_num if counted else host < 0)
        expected = f"in [0, {expert_num})" if counted else "0 or positive"
        first_bad("expert_idx", expected, host, bad)


npu_moe_init_routing_quant.samples = [
    Sample(
        lambda make: (
            make(5, 8, dtype=torch.float16),
            make(5, 2, dtype=torch.int32, low=0, high=4),
        ),
        {"expert_num": 4, "expert_tokens_num_mode": 2, "active_num": 0},
    ),
    Sample(
        lambda make: (
            make(5, 8, dtype=torch.bfloat16),
            make(5, 2, dtype=torch.int32, low=0, high=4),
        ),
        lambda make: {
            "scale": make(4, 8),
            "expert_num": 4,
            "expert_capacity": 2,
            "drop_pad_mode": 1,
            "expert_tokens_before_capacity_flag": True,
        },
    ),
    Sample(
        lambda make: (make(5, 8), make(5, 2, dtype=torch.int32, low=0, high=4)),
        lambda make: {
            "scale": make(1, low=20, high=60),
            "offset": make(1),
            "quant_mode": 0,
            "active_num": 7,
        },
    ),
]
