"""npu_advance_step_flashattn: moves vLLM's decoding state one step on."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


def _check_state(state, length):
    for name, tensor in state.items():
        must.dtype(name, tensor, torch.int64)
        must.shape(name, tensor, (length,))


def _advance(tokens, sampled, positions, seq_lens, slots, block_tables, block_size, queries):
    """One token for each of the first `queries` requests; the rest is padding."""
    step = chips.current().vector_cores
    for tensor, value in ((tokens, 0), (positions, 0), (slots, -1)):
        tensor[queries::step].fill_(value)
    old = seq_lens[:queries].clone()
    tokens[:queries].copy_(sampled.flatten())
    positions[:queries].copy_(old)
    seq_lens[:queries].copy_(old + 1)
    first = block_tables.flatten()[(old // block_size).clamp(0, block_tables.numel() - 1)]
    rows = torch.arange(queries, device=old.device) * block_tables.shape[1]
    slots[:queries].copy_((first + rows) * block_size + old % block_size)


def _advance_speculative(
    tokens, sampled, positions, seq_lens, slots, block_tables, block_size, spec_token, accepted_num
):
    """1 + spec_num tokens for each request, after `accepted_num` of the last ones were accepted."""
    requests, each = sampled.shape
    positions.add_(accepted_num.repeat_interleave(each, output_size=requests * each) + 1)
    seq_lens.copy_(positions + 1)
    # Rejected tokens are -1: the last valid one stands before the first of them.
    valid = (sampled >= 0).long().cumprod(1).sum(1)
    last = sampled.gather(1, ((valid - 1) % each).unsqueeze(1))
    tokens.copy_(torch.cat([last, spec_token], 1).flatten())
    rows = torch.arange(requests, device=sampled.device) * block_tables.shape[1]
    place = (rows.unsqueeze(1) + positions.view(requests, each) // block_size).flatten()
    blocks = block_tables.flatten()[place.clamp(0, block_tables.numel() - 1)]
    slots.copy_(blocks * block_size + positions % block_size)


@npu_op(
    "npu_advance_step_flashattn(Tensor(a!) input_tokens, Tensor sampled_token_ids,"
    " Tensor(b!) input_positions, Tensor(c!) seq_lens, Tensor(d!) slot_mapping,"
    " Tensor block_tables, int num_seqs, int num_queries, int block_size, *, Tensor? spec_token=None,"
    " Tensor? accepted_num=None) -> ()",
    chips=("A2", "A3", "A5"),
)
def npu_advance_step_flashattn(
    input_tokens,
    sampled_token_ids,
    input_positions,
    seq_lens,
    slot_mapping,
    block_tables,
    num_queries,
    block_size,
    spec_token,
    accepted_num,
):
    r"""Updates tokens, positions, lengths and cache slots in place after a decoding step.

    Without speculation, for each query i (with stride = block_tables.size(1), L = seq_lens):

    $$ \text{tokens}_i = \text{sampled}_i, \quad \text{positions}_i = L_i, \quad
       \text{slots}_i = (T_{\lfloor L_i / B \rfloor} + \text{stride} \cdot i) B + L_i \bmod B, \quad
       L_i \leftarrow L_i + 1 $$

    where T are the flattened block tables and B is the block size. Of the padding behind the
    queries, every n-th entry (n: the chip's vector cores, the first entry included) becomes token
    0, position 0, slot -1.

    With speculation, for each request i and each of its 1 + spec_num tokens j (P = positions):

    $$ P_{ij} \leftarrow P_{ij} + 1 + \text{accepted}_i, \quad L_{ij} = P_{ij} + 1, \quad
       \text{slots}_{ij} = T_{\text{stride} \cdot i + \lfloor P_{ij} / B \rfloor} B + P_{ij} \bmod B $$

    and the tokens are the last valid sampled one (before the first -1) followed by `spec_token`.

    Args:
        input_tokens, input_positions, seq_lens, slot_mapping: updated in place; int64 of shape
            (num_seqs,), or (num_seqs * (1 + spec_num),) with speculation.
        sampled_token_ids: int64, (num_queries, 1), or (num_seqs, 1 + spec_num) with speculation.
        block_tables: int64, (num_seqs, blocks), with more blocks than max(seq_lens) // block_size.
        num_seqs, num_queries: how many requests, and how many of them are not padding; with
            speculation the second is not read, without it num_seqs must be the greater.
        block_size: the tokens of a cache block.
        spec_token: int64, (num_seqs, spec_num); given: the case with speculation.
        accepted_num: int64, (num_seqs,); how many speculated tokens each request accepted.

    Constraints:
        For inference on Atlas A2, A3 and Ascend950; no gradient.

    Differs from upstream: a block index beyond an end of the table reads the entry at that end.
    """
    state = (input_tokens, sampled_token_ids, input_positions, seq_lens, slot_mapping)
    if spec_token is None:
        _advance(*state, block_tables, block_size, num_queries)
    else:
        _advance_speculative(*state, block_tables, block_size, spec_token, accepted_num)


@npu_advance_step_flashattn.check
def _(
    input_tokens,
    sampled_token_ids,
    input_positions,
    seq_lens,
    slot_mapping,
    block_tables,
    num_seqs,
    num_queries,
    block_size,
    spec_token,
    accepted_num,
):
    sizes = {"num_seqs": num_seqs, "num_queries": num_queries, "block_size": block_size}
    for name, value in sizes.items():
        must.hold(value > 0, name, "positive", value)
    speculative = spec_token is not None or accepted_num is not None
    each = 1
    if speculative:
        must.present("spec_token", spec_token, "with 'accepted_num'")
        must.present("accepted_num", accepted_num, "with 'spec_token'")
        must.dtype("spec_token", spec_token, torch.int64)
        must.shape("spec_token", spec_token, (num_seqs, None))
        must.dtype("accepted_num", accepted_num, torch.int64)
        must.shape("accepted_num", accepted_num, (num_seqs,))
        each = 1 + spec_token.shape[1]
    else:
        must.hold(num_seqs > num_queries, "num_seqs", f"above {num_queries}", num_seqs)
    state = {
        "input_tokens": input_tokens,
        "input_positions": input_positions,
        "seq_lens": seq_lens,
        "slot_mapping": slot_mapping,
    }
    _check_state(state, num_seqs * each)
    must.dtype("sampled_token_ids", sampled_token_ids, torch.int64)
    rows = num_seqs if speculative else num_queries
    must.shape("sampled_token_ids", sampled_token_ids, (rows, each))
    must.dtype("block_tables", block_tables, torch.int64)
    must.shape("block_tables", block_tables, (num_seqs, None))
    if must.has_data(seq_lens):
        least = int(seq_lens.max()) // block_size + 1
        received = tuple(block_tables.shape)
        enough = block_tables.shape[1] >= least
        must.hold(enough, "block_tables", f"of at least {least} columns", received)


npu_advance_step_flashattn.samples = [
    Sample(
        lambda make: (
            make(6, dtype=torch.int64, low=0, high=9),
            make(4, 1, dtype=torch.int64, low=0, high=9),
            make(6, dtype=torch.int64, low=0, high=9),
            make(6, dtype=torch.int64, low=0, high=9),
            make(6, dtype=torch.int64, low=0, high=9),
            make(6, 3, dtype=torch.int64, low=0, high=9),
            6,
            4,
            4,
        )
    ),
    Sample(
        lambda make: (
            make(6, dtype=torch.int64, low=0, high=9),
            make(2, 3, dtype=torch.int64, low=0, high=9),
            make(6, dtype=torch.int64, low=0, high=9),
            make(6, dtype=torch.int64, low=0, high=9),
            make(6, dtype=torch.int64, low=0, high=9),
            make(2, 8, dtype=torch.int64, low=0, high=9),
            2,
            2,
            4,
        ),
        lambda make: {
            "spec_token": make(2, 2, dtype=torch.int64, low=0, high=9),
            "accepted_num": make(2, dtype=torch.int64, low=0, high=3),
        },
    ),
]
