"""softnpu::write_pages and read_pages against plain loops, where threads share the tokens."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.calls import randn

TOKENS, BLOCKS, BLOCK = 600, 10, 128
SLOTS = torch.randperm(BLOCKS * BLOCK, generator=torch.Generator().manual_seed(2))[:TOKENS].int()


def cache(nz: bool, width: int = 64) -> torch.Tensor:
    return torch.zeros(BLOCKS, width // 16, BLOCK, 16) if nz else torch.zeros(BLOCKS, BLOCK, width)


def token(pages: torch.Tensor, slot: int, nz: bool) -> torch.Tensor:
    page, place = divmod(slot, BLOCK)
    return (pages[page, :, place] if nz else pages[page, place]).flatten()


def written(pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, nz: bool) -> torch.Tensor:
    expected = pages.clone()
    for slot, row in zip(slots.tolist(), rows, strict=True):
        if slot >= 0:
            place = (slot // BLOCK, slice(None), slot % BLOCK) if nz else divmod(slot, BLOCK)
            expected[place] = row.view(-1, 16) if nz else row
    return expected


def repeated() -> torch.Tensor:
    """Every slot twice, some of them none."""
    slots = torch.cat((SLOTS[: TOKENS // 2], SLOTS[: TOKENS // 2].flip(0)))
    slots[::7] = -1
    return slots


@pytest.mark.parametrize("nz", [False, True])
@pytest.mark.parametrize("slots", [SLOTS, repeated()], ids=["distinct", "repeated"])
def test_tokens_in_their_slots(nz, slots):
    first, second = cache(nz), cache(nz, 32)
    rows, others = randn(TOKENS, 64), randn(TOKENS, 32)
    right = written(first, slots, rows, nz), written(second, slots, others, nz)
    torch.ops.softnpu.write_pages(first, slots, rows, nz, second, others)
    assert torch.equal(first, right[0]) and torch.equal(second, right[1])


def test_two_names_of_one_cache():
    """The second write stays, as if one had followed the other."""
    pages, rows = cache(False), randn(2, TOKENS, 64)
    right = written(pages, SLOTS, rows[1], False)
    torch.ops.softnpu.write_pages(pages, SLOTS, rows[0], False, pages, rows[1])
    assert torch.equal(pages, right)


@pytest.mark.parametrize("nz", [False, True])
def test_rows_of_several_sequences(nz):
    """Pages outside of the cache are zeros; of two sequences with one row the later one stays."""
    pages = randn(*cache(nz).shape)
    table = torch.tensor([[3, 1, 9], [7, -1, 2], [0, 5, 99]])
    firsts, lengths, skipped = [0, 300, 500], [300, 290, 260], [0, 0, 1]
    target = torch.full((800, 64), 7.0)
    right = target.clone()
    for i in range(3):
        for j in range(lengths[i]):
            column = j // BLOCK + skipped[i]
            page = int(table[i, column]) if column < 3 else -1
            inside = 0 <= page < BLOCKS
            slot = page * BLOCK + j % BLOCK
            right[firsts[i] + j] = token(pages, slot, nz) if inside else 0
    second = torch.full_like(target, 7.0)
    arguments = (target, pages, table, firsts, lengths, skipped, nz)
    torch.ops.softnpu.read_pages(*arguments, second, pages.clone())
    assert torch.equal(target, right) and torch.equal(second, right)
