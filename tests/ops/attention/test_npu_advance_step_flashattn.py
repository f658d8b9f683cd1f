"""npu_advance_step_flashattn against the documented updates in plain loops."""

import pytest
import torch

import torch_npu
from softnpu import chips
from tests.ops.families import on
from tests.ops.support import make

NAMES = ("input_tokens", "input_positions", "seq_lens", "slot_mapping")


def state(length, high=30):
    """tokens, positions, lengths and slots: random and different."""
    return [make(length, dtype=torch.int64, low=1, high=high, seed=s) for s in range(4)]


def advance(state, sampled, tables, queries, block_size):
    tokens, positions, lengths, slots = (t.cpu().tolist() for t in state)
    flat, stride = tables.cpu().flatten().tolist(), tables.shape[1]
    for i in range(queries):
        tokens[i] = sampled.cpu()[i, 0].item()
        positions[i] = lengths[i]
        block = flat[lengths[i] // block_size] + stride * i
        slots[i] = block * block_size + lengths[i] % block_size
        lengths[i] += 1
    for i in range(queries, len(tokens), chips.current().vector_cores):
        tokens[i], positions[i], slots[i] = 0, 0, -1
    return [tokens, positions, lengths, slots]


def speculate(state, sampled, tables, block_size, spec, accepted):
    tokens, positions, lengths, slots = (t.cpu().tolist() for t in state)
    table = tables.cpu().flatten().tolist()
    each = 1 + spec.shape[1]
    for i, row in enumerate(sampled.cpu().tolist()):
        valid = row[: row.index(-1)] if -1 in row else row
        tokens[i * each : (i + 1) * each] = [valid[-1], *spec.cpu()[i].tolist()]
        for j in range(i * each, (i + 1) * each):
            positions[j] += 1 + accepted[i].item()
            lengths[j] = positions[j] + 1
            block = table[i * tables.shape[1] + positions[j] // block_size]
            slots[j] = block * block_size + positions[j] % block_size
    return [tokens, positions, lengths, slots]


@pytest.mark.parametrize("seqs,queries,block_size", [(2, 1, 1), (16, 8, 8), (7, 6, 5), (50, 3, 16)])
def test_without_speculation(seqs, queries, block_size):
    given = state(seqs)
    sampled = make(queries, 1, dtype=torch.int64, low=1, high=99)
    tables = make(seqs, 30 // block_size + 1, dtype=torch.int64, low=1, high=50)
    want = advance(given, sampled, tables, queries, block_size)
    tokens, positions, lengths, slots = given
    result = torch_npu.npu_advance_step_flashattn(
        tokens, sampled, positions, lengths, slots, tables, seqs, queries, block_size
    )
    assert result is None
    for name, got, expected in zip(NAMES, given, want, strict=True):
        assert got.cpu().tolist() == expected, name


@pytest.mark.parametrize("seqs,spec_num,block_size", [(1, 1, 4), (6, 3, 8), (5, 2, 3)])
def test_with_speculation(seqs, spec_num, block_size):
    given = state(seqs * (1 + spec_num))
    sampled = make(seqs, 1 + spec_num, dtype=torch.int64, low=1, high=99)
    accepted = make(seqs, dtype=torch.int64, low=0, high=spec_num + 1)
    for i, count in enumerate(accepted.tolist()):
        sampled[i, 1 + count :] = -1
    tables = make(seqs, 40 // block_size + 1, dtype=torch.int64, low=1, high=50)
    spec = make(seqs, spec_num, dtype=torch.int64, low=1, high=99)
    want = speculate(given, sampled, tables, block_size, spec, accepted.cpu())
    tokens, positions, lengths, slots = given
    torch_npu.npu_advance_step_flashattn(
        tokens,
        sampled,
        positions,
        lengths,
        slots,
        tables,
        seqs,
        seqs,
        block_size,
        spec_token=spec,
        accepted_num=accepted,
    )
    for name, got, expected in zip(NAMES, given, want, strict=True):
        assert got.cpu().tolist() == expected, name


def call(seqs=4, queries=2, block_size=8, sampled=(2, 1), columns=4, dtype=torch.int64, **options):
    tokens, positions, lengths, slots = (t.to(dtype) for t in state(seqs))
    torch_npu.npu_advance_step_flashattn(
        tokens,
        make(*sampled, dtype=torch.int64, low=1, high=9),
        positions,
        lengths,
        slots,
        make(seqs, columns, dtype=torch.int64, low=1, high=9),
        seqs,
        queries,
        block_size,
        **options,
    )


def test_mutation_is_visible_to_autograd():
    tokens, positions, lengths, slots = state(4)
    before = tokens._version
    torch_npu.npu_advance_step_flashattn(
        tokens,
        make(2, 1, dtype=torch.int64, low=1, high=9),
        positions,
        lengths,
        slots,
        make(4, 9, dtype=torch.int64, low=1, high=9),
        4,
        2,
        8,
    )
    assert tokens._version > before


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="flashattn: argument 'input_tokens' .*int64.*int32"):
        call(dtype=torch.int32)


def test_no_padding_without_speculation():
    with pytest.raises(RuntimeError, match="argument 'num_seqs' must be above 4, but received 4"):
        call(queries=4, sampled=(4, 1))


def test_bad_sampled_shape():
    with pytest.raises(
        RuntimeError, match=r"'sampled_token_ids' must be of shape \(2, 1\).*\(3, 1\)"
    ):
        call(sampled=(3, 1))


def test_too_few_blocks():
    with pytest.raises(RuntimeError, match=r"'block_tables' must be of at least \d columns"):
        call(columns=1)


def test_bad_block_size():
    with pytest.raises(RuntimeError, match="argument 'block_size' must be positive, .* 0"):
        call(block_size=0)


def test_speculation_needs_both():
    with pytest.raises(RuntimeError, match="'accepted_num' must be given with 'spec_token'"):
        call(spec_token=make(4, 1, dtype=torch.int64, high=9))


@pytest.mark.parametrize("accepted", [-(2**62), -100, 2**40])
def test_block_indices_out_of_the_table_stay_inside(accepted):
    """Positions come from data: the slots are those of a block that the table holds, not of other memory."""
    tokens, positions, lengths, slots = (torch.zeros(4, dtype=torch.int64).npu() for _ in range(4))
    tables = torch.full((2, 4), 7).npu()
    sampled, spec = (
        torch.ones(2, 2, dtype=torch.int64).npu(),
        torch.ones(2, 1, dtype=torch.int64).npu(),
    )
    torch_npu.npu_advance_step_flashattn(
        tokens, sampled, positions, lengths, slots, tables, 2, 2, 8,
        spec_token=spec, accepted_num=torch.full((2,), accepted).npu(),
    )  # fmt: skip
    assert slots.tolist() == [7 * 8 + (accepted + 1) % 8] * 4


def test_speculation_does_not_read_the_number_of_queries():
    found = []
    for queries in (1, 3):
        given = state(6)
        sampled, spec = (make(3, n, dtype=torch.int64, low=1, high=99) for n in (2, 1))
        tables = make(3, 11, dtype=torch.int64, low=1, high=50)
        tokens, positions, lengths, slots = given
        torch_npu.npu_advance_step_flashattn(
            tokens, sampled, positions, lengths, slots, tables, 3, queries, 4,
            spec_token=spec, accepted_num=torch.zeros(3, dtype=torch.int64).npu(),
        )  # fmt: skip
        found.append([t.tolist() for t in given])
    assert found[0] == found[1]


def test_chips():
    with on("310P"), pytest.raises(NotImplementedError, match="npu_advance_step_flashattn.* A2 or"):
        call()
