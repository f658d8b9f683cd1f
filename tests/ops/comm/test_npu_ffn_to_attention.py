"""npu_ffn_to_attention on ranks: two FFN workers write into the windows of two attention workers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.families import as_chip
from tests.ops.support import make
from torch_npu.distributed.distributed_c10d import backend_of

A3 = {"SOFTNPU_SOC": "Ascend910_9391"}
ATTENTION, WORLD, BS, EXPERTS, H, HS = 2, 4, 4, 3, 1024, 1152
ROWS = BS * EXPERTS * ATTENTION


def rows_of(worker: int, dtype: torch.dtype):
    """The rows that one of two FFN workers sends: every second place of every attention worker."""
    x = torch.randn(ROWS, H, generator=torch.Generator().manual_seed(worker)).to(dtype)
    places = [(s, t, e) for s in range(ATTENTION) for t in range(BS) for e in range(EXPERTS)]
    mine = [p for i, p in enumerate(places) if i % 2 == worker]
    ids = torch.tensor(mine + [(0, 0, 0)] * (ROWS - len(mine)), dtype=torch.int32)
    return x, ids, len(mine)


def run_rank(rank, dtype, ranks_of_workers):
    """`ranks_of_workers` says which ranks are attention workers 0 and 1, or None: ranks 0 and 1."""
    torch.npu.set_device(rank)
    backend = backend_of(dist.group.WORLD)
    attention = ranks_of_workers or list(range(ATTENTION))
    ffn = [r for r in range(WORLD) if r not in attention]
    backend._window_register_and_exchange(1 << 16, ffn if rank in attention else attention)
    if rank in ffn:
        x, ids, count = rows_of(ffn.index(rank), dtype)
        session, token, expert = (ids[:, i].contiguous().npu() for i in range(3))
        table = None if ranks_of_workers is None else torch.tensor(attention, dtype=torch.int32)
        torch_npu.npu_ffn_to_attention(
            x.npu(), session, torch.zeros_like(session), token, expert,
            torch.tensor([count]).npu(), backend.get_hccl_comm_name(rank), WORLD, [1, BS, EXPERTS],
            [1, BS, EXPERTS, HS], attn_rank_table=None if table is None else table.npu(),
        )  # fmt: skip
        dist.barrier()
        return
    dist.barrier()
    window = backend._get_window_mem().cpu()
    assert torch.equal(window[: BS * EXPERTS * 4].view(torch.int32), torch.ones(12).int())
    data = window[512:].view(dtype)[: BS * EXPERTS * HS].view(BS, EXPERTS, HS)
    for worker in range(2):
        x, ids, count = rows_of(worker, dtype)
        for row, (session, token, expert) in zip(x[:count], ids.tolist(), strict=False):
            if attention[session] == rank:
                assert torch.equal(data[token, expert, :H], row)
                assert data[token, expert, H:].abs().sum() == 0


@pytest.mark.parametrize(("dtype", "table"), [(torch.float16, None), (torch.bfloat16, [3, 1])])
def test_windows_hold_the_rows(dtype, table):
    job.run(run_rank, WORLD, dtype, table, env=A3)


def arguments(**changes):
    ids = torch.zeros(3, dtype=torch.int32).npu()
    given = {
        "x": make(3, 1024, dtype=torch.float16),
        "session_ids": ids,
        "micro_batch_ids": ids,
        "token_ids": ids,
        "expert_offsets": ids,
        "actual_token_num": torch.tensor([3]).npu(),
        "group": "softnpu%mirror_2",
        "world_size": 2,
        "token_info_table_shape": [1, 4, 2],
        "token_data_shape": [1, 4, 2, 1152],
    }
    return {**given, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": make(3, 8200, dtype=torch.float16)}, r"'x' must be of width in \[1024, 8192\].*8200"),
        ({"world_size": 3}, "'world_size' must be the number of ranks"),
        ({"token_data_shape": [1, 4, 3, 1152]}, "'token_data_shape' must be"),
        ({"token_info_table_shape": [2, 4, 2], "token_data_shape": [2, 4, 2, 1152]}, "one micro batch"),
        ({"token_data_shape": [1, 4, 2, 9000]}, r"'token_data_shape' must be of width in \[1024, 8320\]"),
        ({"actual_token_num": torch.tensor([4])}, "'actual_token_num' must be in"),
        ({"token_ids": torch.full((3,), 4, dtype=torch.int32)}, r"'token_ids' must be in \[0, BS = 4\)"),
        ({"session_ids": torch.zeros(2, dtype=torch.int32)}, r"'session_ids' must be of shape \(3\)"),
        ({"attn_rank_table": torch.zeros(2, dtype=torch.int32)}, "'attn_rank_table' must be of at most 1"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    changes = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in changes.items()}
    with as_chip(A3["SOFTNPU_SOC"]), pytest.raises(RuntimeError, match=message):
        torch_npu.npu_ffn_to_attention(**arguments(**changes))


def test_rows_past_the_count_may_hold_anything():
    ids = torch.tensor([0, 0, 99], dtype=torch.int32).npu()
    with as_chip(A3["SOFTNPU_SOC"]):
        torch_npu.npu_ffn_to_attention(
            **arguments(token_ids=ids, actual_token_num=torch.tensor([2]).npu())
        )
