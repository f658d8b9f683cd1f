"""npu_moe_update_expert against loops over tokens and experts."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


@pytest.fixture(autouse=True)
def a3():
    """A2 has no such operator."""
    with on("A3"):
        yield


TABLE = [[1, 3, 0, 0], [3, 0, 4, 7], [2, 1, 5, 0], [1, 2, 0, 0], [3, 6, 8, 9]]


def table():
    return torch.tensor(TABLE, dtype=torch.int32).to(make(1).device)


def ids(*shape, dtype=torch.int32):
    return make(*shape, dtype=dtype, low=0, high=5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rank,world", [(0, 3), (3, 8), (7, 8), (5, 7)])
def test_by_rank(rank, world, dtype):
    experts = ids(9, 3, dtype=dtype)
    got, mask = torch_npu.npu_moe_update_expert(
        experts, table(), local_rank_id=rank, world_size=world
    )
    want = []
    for row in experts.tolist():
        want.append([])
        for e in row:
            count = TABLE[e][0]
            place = 0 if count == 1 else rank // -(-world // count)
            want[-1].append(TABLE[e][1 + place])
    assert got.dtype == dtype and got.tolist() == want
    assert mask.dtype == torch.bool and mask.shape == (9, 3)


def test_by_token():
    experts = ids(9, 3)
    got, _ = torch_npu.npu_moe_update_expert(experts, table(), balance_mode=1)
    rows = enumerate(experts.tolist())
    assert got.tolist() == [[TABLE[e][1 + i % TABLE[e][0]] for e in row] for i, row in rows]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_pruning(masked, flat, dtype):
    scales = make(7, 3, dtype=dtype, low=0)
    limit = make(3, low=0.1, high=0.5)
    active = torch.tensor([True] * 4 + [False] * 3).to(scales.device) if masked else None
    _, mask = torch_npu.npu_moe_update_expert(
        ids(7, 3),
        table(),
        expert_scales=scales,
        pruning_threshold=limit if flat else limit[None],
        active_mask=active,
        balance_mode=1,
    )
    want = []
    for i, row in enumerate(scales.double().tolist()):
        on = not masked or i < 4
        want.append([on and s >= sum(row) * t for s, t in zip(row, limit.double().tolist())])
    assert mask.tolist() == want and any(map(any, want)) and not all(map(all, want))


@pytest.mark.parametrize(
    "options,message",
    [
        ({}, r"'world_size' must be in \[2, 768\], but received -1"),
        ({"world_size": 4, "local_rank_id": 4}, r"'local_rank_id' must be in \[0, world_size\)"),
        ({"world_size": 2, "local_rank_id": 0}, "'eplb_table' must be of at most 3 columns"),
        ({"balance_mode": 2}, "'balance_mode' must be 0 or 1, but received 2"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_moe_update_expert(ids(4, 2), table(), **options)


def test_pruning_needs_both():
    with pytest.raises(
        RuntimeError, match="'pruning_threshold' must be given with 'expert_scales'"
    ):
        torch_npu.npu_moe_update_expert(
            ids(4, 2), table(), expert_scales=make(4, 2), balance_mode=1
        )


def test_values_out_of_range():
    with pytest.raises(RuntimeError, match=r"'expert_ids' must be in \[0, 4\]"):
        torch_npu.npu_moe_update_expert(ids(4, 2) + 5, table(), balance_mode=1)
    with pytest.raises(RuntimeError, match="'eplb_table' must be from 1 to 3 in its first column"):
        torch_npu.npu_moe_update_expert(ids(4, 2), table() * 2, balance_mode=1)


def test_a2_has_no_such_operator():
    with (
        on("A2"),
        pytest.raises(RuntimeError, match="npu_moe_update_expert: argument 'device' must be"),
    ):
        torch_npu.npu_moe_update_expert(ids(3, 2), table(), local_rank_id=0, world_size=8)


def test_1024_experts():
    rows = torch.ones(1024, 2, dtype=torch.int32, device=make(1).device)
    found, _ = torch_npu.npu_moe_update_expert(ids(3, 2), rows, local_rank_id=0, world_size=8)
    assert (found == 1).all()
