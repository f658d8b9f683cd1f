"""References for Triton kernels of vllm-ascend, against loops."""

from __future__ import annotations

import pytest
import torch

from softnpu.contrib.vllm_ascend.triton_kernels import slot_mapping

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
