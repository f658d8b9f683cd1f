"""npu_moe_init_routing_quant against plain loops."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.norm.quantized import rounds_to
from tests.ops.support import make

#: between neighbors of float16 below 128: the kernel quantizes by way of float16 (tests/ops/test_rounding.py)
HALF = 2**-4


def inputs(tokens=7, width=12, choices=3, experts=5, dtype=torch.float32):
    return make(tokens, width, dtype=dtype), make(
        tokens, choices, dtype=torch.int32, low=0, high=experts
    )


def pairs(experts):
    """(expert, token, flat index) sorted by expert, stably."""
    flat = experts.cpu().flatten().tolist()
    order = sorted(range(len(flat)), key=lambda i: flat[i])
    return [(flat[i], i // experts.shape[1], i) for i in order]


def row(x, token, expert, scale):
    values = x.cpu().double()[token]
    if scale is None:
        return values
    return values * scale.cpu().double()[0 if len(scale) == 1 else expert]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scales", [None, 1, 5])
@pytest.mark.parametrize("active", [0, 10, 100])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_dynamic(dtype, scales, active, mode):
    x, experts = inputs(dtype=dtype)
    scale = None if scales is None else make(scales, 12, low=0.5, high=2)
    y, place, counts, before, tops = torch_npu.npu_moe_init_routing_quant(
        x, experts, scale=scale, expert_num=5, active_num=active, expert_tokens_num_mode=mode
    )
    sorted_pairs = pairs(experts)
    kept = min(active, 21) if active else 21
    assert y.shape == (kept, 12) and y.dtype == torch.int8 and tops.shape == (kept,)
    for i, (expert, token, flat) in enumerate(sorted_pairs):
        assert place[flat] == i
        if i < kept:
            values = row(x, token, expert, scale)
            top = values.abs().max() / 127
            torch.testing.assert_close(tops[i].cpu().double(), top, rtol=1e-6, atol=0)
            rounds_to(y[i], values / top, slack=HALF)
    numbers = np.bincount(experts.cpu().flatten(), minlength=5)
    want = {0: None, 1: np.cumsum(numbers).tolist(), 2: numbers.tolist()}[mode]
    assert (counts.tolist() if mode else counts) == want
    assert before is None and place.dtype == torch.int32


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("capacity", [1, 4, 7])
def test_dropping(flag, capacity):
    x, experts = inputs(dtype=torch.float16)
    y, place, counts, before, tops = torch_npu.npu_moe_init_routing_quant(
        x,
        experts,
        expert_num=5,
        drop_pad_mode=1,
        expert_capacity=capacity,
        expert_tokens_before_capacity_flag=flag,
    )
    want_place = [-1] * 21
    filled, used = torch.zeros(5, capacity, 12, dtype=torch.float64), [0] * 5
    for expert, token, flat in pairs(experts):
        if used[expert] < capacity:
            want_place[flat] = expert * capacity + used[expert]
            filled[expert, used[expert]] = x.cpu().double()[token]
        used[expert] += 1
    assert place.tolist() == want_place and counts is None
    assert (before.tolist() if flag else before) == (used if flag else None)
    top = filled.abs().amax(-1) / 127
    torch.testing.assert_close(tops.cpu().double(), top.flatten(), rtol=1e-6, atol=0)
    rounds_to(y, filled / torch.where(top == 0, 1.0, top)[..., None], slack=HALF)


def test_static_and_strides():
    x, experts = make(12, 7).t(), make(3, 7, dtype=torch.int32, low=0, high=5).t()
    scale, offset = make(1, low=30, high=90), make(1, low=-9, high=9)
    y, _, _, _, tops = torch_npu.npu_moe_init_routing_quant(
        x, experts, scale=scale, offset=offset, quant_mode=0, active_num=0
    )
    want = torch.stack([x.cpu().double()[token] for _, token, _ in pairs(experts)])
    rounds_to(y, want * float(scale) + float(offset), slack=2 * HALF)
    assert tops is None


def test_bad_arguments():
    x, experts = inputs()
    for args, options, text in [
        ((x[0], experts), {}, "'x' must be a tensor of 2 dimensions"),
        ((x, experts.long()), {}, "'expert_idx' must be of dtype torch.int32"),
        ((x, experts[:3]), {}, r"'expert_idx' must be of shape \(7, \*\)"),
        ((x, experts), {"quant_mode": 2}, "'quant_mode' must be 0 or 1, but received 2"),
        ((x, experts), {"quant_mode": 0}, "'scale' must be given for static quantization"),
        (
            (x, experts),
            {"scale": make(3, 12)},
            r"'scale' must be of shape \(1, 12\) or \(256, 12\)",
        ),
        ((x, experts), {"drop_pad_mode": 1}, "'expert_capacity' must be from 1 to 7"),
        (
            (x, experts),
            {"expert_num": 2, "expert_tokens_num_mode": 1},
            r"'expert_idx' must be in \[0, 2\)",
        ),
        ((x, experts - 5), {}, "'expert_idx' must be 0 or positive"),
        ((x, experts), {"active_num": -1}, "'active_num' must be 0 or positive"),
    ]:
        with pytest.raises(RuntimeError, match="npu_moe_init_routing_quant: argument " + text):
            torch_npu.npu_moe_init_routing_quant(*args, **options)
