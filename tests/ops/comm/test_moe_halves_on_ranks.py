"""Setup and teardown of dispatch and combine on two ranks: every result by plain loops, and the way there and back."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.comm.test_moe_on_ranks import apply_experts, choices, dense, tokens, weights
from tests.ops.support import assert_accurate
from torch_npu.distributed.distributed_c10d import backend_of

COUNT, K, HIDDEN, EXPERTS, RANKS = 8, 6, 4096, 32, 2
LOCAL = EXPERTS // RANKS


def arriving(rank: int, active: dict[int, int]) -> list[tuple[int, int, int]]:
    """(local expert, source, token) of every row that arrives, in order."""
    rows = []
    for mine in range(LOCAL):
        for source in range(RANKS):
            ids = choices(source, COUNT, K, EXPERTS)
            for token in range(active[source]):
                if rank * LOCAL + mine in ids[token].tolist():
                    rows.append((mine, source, token))
    return rows


def mx(row: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The float8_e4m3fn values of a row by the OCP specification, as doubles, and the bytes of its scales."""
    values, scales = [], []
    for block in row.double().view(-1, 32):
        top = block.abs().max().item()
        exponent = math.floor(math.log2(top)) - 8
        scales.append(exponent + 127)
        scaled = (block / 2.0**exponent).clamp(-448, 448)
        values.append(scaled.float().to(torch.float8_e4m3fn).double())
    return torch.cat(values), scales


def there_and_back(rank: int, dtype: torch.dtype, masked: bool, shared: bool) -> None:
    name = backend_of().get_hccl_comm_name(rank)
    # how many tokens take part on each rank
    active = {0: 5, 1: 8} if masked else {0: COUNT, 1: COUNT}
    x, ids = tokens(rank, COUNT, HIDDEN, dtype), choices(rank, COUNT, K, EXPERTS)
    scale = weights(rank, COUNT, K)
    mask = torch.arange(COUNT) < active[rank]
    where = (name, RANKS, rank, EXPERTS)
    options = {"comm_type": 2, "shared_expert_num": 0}
    given = {"x_active_mask": mask.npu()} if masked else {}
    y, expand_idx, info = torch_npu.npu_moe_distribute_dispatch_setup(
        x.npu(), ids.npu(), *where, **options, **given
    )
    seen: dict[int, int] = {}
    for at, number in enumerate(ids[: active[rank]].flatten().tolist()):
        assert expand_idx[at].item() == seen.get(number, 0)
        seen[number] = seen.get(number, 0) + 1
    order = [
        token
        for number in range(EXPERTS)
        for token in range(active[rank])
        if number in ids[token].tolist()
    ]
    assert y.shape == (COUNT * K, HIDDEN)
    assert torch.equal(y[: len(order)].cpu(), x[order]) and y[len(order) :].abs().sum() == 0

    expand_x, factors, assist, nums = torch_npu.npu_moe_distribute_dispatch_teardown(
        x.npu(), y, ids.npu(), info, *where, **options
    )
    rows = arriving(rank, active)
    capacity = COUNT * RANKS * K
    assert expand_x.shape == (capacity, HIDDEN) and factors.tolist() == [0.0] * capacity
    for i, (_, source, token) in enumerate(rows):
        assert torch.equal(expand_x[i].cpu(), tokens(source, COUNT, HIDDEN, dtype)[token])
    assert expand_x[len(rows) :].abs().sum() == 0
    per_expert = [sum(r[0] == e for r in rows) for e in range(LOCAL)]
    assert nums.tolist() == per_expert and nums.dtype == torch.int64
    cells = [sum(r[:2] == (e, s) for r in rows) for e in range(LOCAL) for s in range(RANKS)]
    assert assist.shape == (capacity * 128,)
    assert assist[: len(cells)].tolist() == torch.tensor(cells).cumsum(0).tolist()

    results = apply_experts(expand_x, per_expert, rank * LOCAL)
    small, back = torch_npu.npu_moe_distribute_combine_setup(
        results, ids.npu(), assist, *where, **options
    )
    assert small.shape == (capacity, 6144) and small.dtype == torch.int8
    assert back.shape == ((capacity + RANKS) * 16,)
    extra = tokens(rank + 7, COUNT, HIDDEN, dtype)
    if shared:
        given["shared_expert_x"] = extra.view(2, 4, HIDDEN).npu()
    got = torch_npu.npu_moe_distribute_combine_teardown(
        results, small, ids.npu(), expand_idx, scale.npu(), back, *where, **options, **given
    )
    want = dense(x, ids, scale, mask.unsqueeze(1).expand(-1, K), dtype)
    if shared:
        want = want + extra.double()
    assert_accurate(got, want, want.to(dtype))


def quantized(rank: int) -> None:
    name = backend_of().get_hccl_comm_name(rank)
    x, ids = tokens(rank, COUNT, HIDDEN, torch.bfloat16), choices(rank, COUNT, K, EXPERTS)
    given = {"comm_type": 2, "quant_mode": 4}
    y, _, info = torch_npu.npu_moe_distribute_dispatch_setup(
        x.npu(), ids.npu(), name, RANKS, rank, EXPERTS, y_dtype=torch_npu.float8_e4m3fn, **given
    )
    # 4096 values, 128 scales, up to a multiple of 512; one row more a token for a shared expert
    assert y.shape == (COUNT * (K + 1), 4608) and y.dtype == torch.float8_e4m3fn
    expand_x, scales, _, _ = torch_npu.npu_moe_distribute_dispatch_teardown(
        x.npu(), y, ids.npu(), info, name, RANKS, rank, EXPERTS, **given
    )
    assert scales.shape == (COUNT * RANKS * K, HIDDEN // 32) and scales.dtype == torch.uint8
    for i, (_, source, token) in enumerate(arriving(rank, {0: COUNT, 1: COUNT})[:12]):
        values, wanted = mx(tokens(source, COUNT, HIDDEN, torch.bfloat16)[token])
        assert torch.equal(expand_x[i].cpu().double(), values)
        assert scales[i].tolist() == wanted


def other_mask(rank: int) -> None:
    """A mask that combine has and dispatch had not is told by name."""
    name = backend_of().get_hccl_comm_name(rank)
    x, ids = tokens(rank, COUNT, HIDDEN, torch.float16), choices(rank, COUNT, K, EXPERTS)
    where, options = (name, RANKS, rank, EXPERTS), {"comm_type": 2, "shared_expert_num": 0}
    few = (torch.arange(COUNT) < 3).npu()
    y, nth, info = torch_npu.npu_moe_distribute_dispatch_setup(
        x.npu(), ids.npu(), *where, x_active_mask=few, **options
    )
    rows, _, assist, _ = torch_npu.npu_moe_distribute_dispatch_teardown(
        x.npu(), y, ids.npu(), info, *where, **options
    )
    small, back = torch_npu.npu_moe_distribute_combine_setup(
        rows, ids.npu(), assist, *where, **options
    )
    try:
        torch_npu.npu_moe_distribute_combine_teardown(
            rows, small, ids.npu(), nth, weights(rank, COUNT, K).npu(), back, *where, **options
        )
    except RuntimeError as error:
        assert "'x_active_mask' must be as at dispatch" in str(error)
    else:
        raise AssertionError("nobody noticed")


def on_two(rank: int) -> None:
    assert dist.get_world_size() == RANKS
    there_and_back(rank, torch.bfloat16, masked=False, shared=False)
    there_and_back(rank, torch.float16, masked=True, shared=True)
    quantized(rank)
    other_mask(rank)


def test_two_ranks():
    job.run(on_two, 2, env={"SOFTNPU_SOC": "Ascend950"})
