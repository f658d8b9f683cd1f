"""References for Triton kernels of vllm-ascend, against loops."""

from __future__ import annotations

import pytest
import torch

from softnpu.contrib.vllm_ascend.triton_kernels import rotate, rotate_one, slot_mapping

PAD = -1


def expected(starts, positions, table, block, physical, ranks, rank, turn):
    slots = []
    for request, (start, end) in enumerate(zip(starts, starts[1:])):
        for position in positions[start:end]:
            if ranks == 1:
                slots.append(int(table[request, position // block]) * block + position % block)
                continue
            page, inside = divmod(position, physical * ranks)
            if inside // turn % ranks != rank:
                slots.append(PAD)
                continue
            own = inside // (ranks * turn) * turn + inside % turn
            number = int(table[request, page * (physical // block) + own // block])
            slots.append(number * block + own % block)
    return slots


@pytest.mark.parametrize(("ranks", "rank", "turn"), [(1, 0, 1), (2, 0, 1), (2, 1, 2)])
def test_slot_mapping(ranks, rank, turn):
    block, physical, most = 4, 8, 16
    starts = [0, 3, 3, 9]
    positions = [5, 6, 7, *range(11, 17)]
    table = torch.randperm(24).view(3, 8).int()
    slots = torch.full((most,), 77, dtype=torch.int32)
    slot_mapping(
        (4,), 9, most, torch.tensor(starts).int(), torch.tensor(positions), table, 8, block, slots,
        physical, physical // block, ranks, rank, turn, PAD, TILE_BLOCK_SIZE=1024,
        BLOCK_TABLE_WINDOW_SIZE=512,
    )  # fmt: skip
    found = expected(starts, positions, table, block, physical, ranks, rank, turn)
    assert slots.tolist() == found + [PAD] * (most - len(found))


def test_blocks_past_the_table_are_0():
    slots = torch.zeros(2, dtype=torch.int32)
    slot_mapping(
        (2,), 2, 2, torch.tensor([0, 2]).int(), torch.tensor([1, 9]), torch.tensor([[3, 5]]).int(), 2, 4,
        slots, 4, 1, 1, 0, 1, PAD,
    )  # fmt: skip
    assert slots.tolist() == [13, 1]


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation(halves, table, dtype):
    """Queries and keys in place; elements past rope_dim stay."""
    q, k = torch.randn(5, 4, 32).to(dtype), torch.randn(5, 2, 32).to(dtype)
    angles, positions = torch.randn(9, 16).to(dtype), torch.tensor([3, 0, 8, 1, 1])
    given = (None, None, None, None, angles, 16, positions)
    if not table:
        cos, sin = (part.contiguous() for part in angles[positions].chunk(2, 1))
        given = (cos, 8, sin, 8, None, None, None)
    turned = q.clone(), k.clone()
    single = q.clone()
    rest = (halves, table)
    rotate((5,), turned[0], 128, turned[1], 64, *given, 5, 4, 2, 32, 16, 16, 64, *rest)
    rotate_one((5,), single, 128, *given, 5, 4, 32, 16, 4, 16, 64, *rest)
    cos, sin = (part.double().unsqueeze(1) for part in angles[positions].chunk(2, 1))
    for x, got in zip((q, k, q), (*turned, single)):
        part = x[..., :16].double()
        a, b = part.chunk(2, -1) if halves else (part[..., 0::2], part[..., 1::2])
        pair = a * cos - b * sin, b * cos + a * sin
        joined = torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)
        close = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got[..., :16].double(), joined, atol=close, rtol=close)
        assert torch.equal(got[..., 16:], x[..., 16:])


def test_widths_that_the_kernel_pads_are_left_to_it():
    x = torch.randn(1, 1, 32)
    arguments = (None, None, None, None, x, 32, x, 1, 1)
    assert rotate_one((1,), x, 32, *arguments, 32, 24, 1, 32, 64, True, True) is NotImplemented
