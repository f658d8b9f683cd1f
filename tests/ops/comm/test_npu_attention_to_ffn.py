"""npu_attention_to_ffn on ranks: two attention workers, two FFN workers, against plain loops over the windows."""

from __future__ import annotations

import math
import time

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.families import as_chip
from tests.ops.support import make
from torch_npu.distributed.distributed_c10d import backend_of

A3 = {"SOFTNPU_SOC": "Ascend910_9391"}
FFN, WORLD, BS, K, H = 2, 4, 5, 2, 1024
EXPERTS, SHARED = 3, 1
#: how many ranks, then rank and number there; expert 1 is on both
TABLE = [[1, 0, 0, 0, 0], [2, 1, 1, 0, 2], [1, 1, 0, 0, 0], [2, 0, 7, 1, 8]]
PER = K + SHARED


def tokens(session: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(session)
    x = torch.randn(BS, H, generator=g).to(dtype)
    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:K] for _ in range(BS)]).int()
    return x, ids, torch.rand(EXPERTS + SHARED, H, generator=g) + 0.5


def wanted(rank: int, dtype, quant, tokens_sent, layer, all_flags, with_scales):
    """The table and the rows that an FFN worker must find, by plain loops."""
    info = torch.zeros(2, 1, 2 + BS * PER, dtype=torch.int32)
    rows = {}
    for session in range(2):
        x, ids, scales = tokens(session, dtype)
        for t in range(tokens_sent):
            for c in range(PER):
                expert = int(ids[t, c]) if c < K else EXPERTS + c - K
                row = TABLE[expert]
                place = 1 + 2 * (session % row[0])
                if row[place] != rank:
                    continue
                info[session, 0, 2 + t * PER + c] = row[place + 1]
                info[session, 0, :2] = torch.tensor([1, layer])
                value = x[t].double() * (scales[expert].double() if with_scales else 1)
                if quant:
                    step = value.abs().max() / 127
                    rows[session, t, c] = (value / step).round(), float(step)
                else:
                    rows[session, t, c] = x[t], None
        if all_flags:
            info[session, 0, :2] = torch.tensor([1, layer])
    return info, rows


def run_rank(rank, dtype, quant, mask, asynchronous, with_scales):
    torch.npu.set_device(rank)
    backend = backend_of(dist.group.WORLD)
    name = backend.get_hccl_comm_name(rank)
    others = range(FFN, WORLD) if rank < FFN else range(FFN)
    length = H + 128 if quant else H
    info_shape, data_shape = [2, 1, 2 + BS * PER], [2, 1, BS, PER, length]
    start = math.ceil(math.prod(info_shape) * 4 / 512) * 512
    backend._window_register_and_exchange(start + math.prod(data_shape) * 2, list(others))
    sent = BS - 2 if mask else BS
    window = backend._get_window_mem()
    if rank >= FFN:
        session = rank - FFN
        x, ids, scales = tokens(session, dtype)
        one = [torch.tensor([v], dtype=torch.int32).npu() for v in (session, 0, 0)]
        active = torch.tensor([[True] * sent + [False] * (BS - sent)]).npu() if mask else None
        torch_npu.npu_attention_to_ffn(
            x[None].npu(), *one, ids[None].npu(), torch.tensor([TABLE], dtype=torch.int32).npu(), name,
            WORLD, info_shape, data_shape, [1, BS, PER], EXPERTS, active_mask=active,
            scales=scales[None].npu() if with_scales else None, quant_mode=2 if quant else 0,
            sync_flag=int(asynchronous),
        )  # fmt: skip
        own = window.cpu()[: BS * PER * 4].view(torch.int32).view(BS, PER)
        assert own[:sent].sum() == 0 and bool((own[sent:] == 1).all())
        dist.barrier()
        return
    dist.barrier()
    info, rows = wanted(rank, dtype, quant, sent, 0, not asynchronous, with_scales)
    got = window.cpu()
    found = got[: info.numel() * 4].view(torch.int32).view_as(info)
    assert torch.equal(found, info), (rank, found, info)
    data = got[start:].view(torch.int8 if quant else dtype)
    data = data[: math.prod(data_shape)].view(*data_shape)
    for (session, t, c), (row, step) in rows.items():
        have = data[session, 0, t, c]
        if quant:
            assert (have[:H].double() - row).abs().max() <= 1
            assert (have[:H].double() != row).double().mean() < 0.01  # ties of rounding
            factor = have[H : H + 4].clone().view(torch.float32)
            assert float(factor) == pytest.approx(step, rel=1e-6)
        else:
            assert torch.equal(have, row)
    untouched = [i for i in range(BS * PER) if (0, i // PER, i % PER) not in rows]
    assert all(data[0, 0, i // PER, i % PER].abs().sum() == 0 for i in untouched)


@pytest.mark.parametrize(
    ("dtype", "quant", "mask", "asynchronous", "with_scales"),
    [
        (torch.bfloat16, False, False, False, False),
        (torch.float16, False, True, True, False),
        (torch.bfloat16, True, True, False, True),
        (torch.float16, True, False, True, False),
    ],
)
def test_windows_hold_the_tokens(dtype, quant, mask, asynchronous, with_scales):
    job.run(run_rank, WORLD, dtype, quant, mask, asynchronous, with_scales, env=A3)


def wait_for_reader(rank):
    """The second call waits until the FFN worker has taken the flag back."""
    torch.npu.set_device(rank)
    backend = backend_of(dist.group.WORLD)
    name = backend.get_hccl_comm_name(rank)
    info_shape, data_shape = [1, 1, 3], [1, 1, 1, 1, H]
    backend._window_register_and_exchange(4096, [1 - rank])
    if rank == 0:
        flag = backend._get_window_mem().view(torch.int32)
        dist.barrier()
        time.sleep(0.3)
        flag[0] = 0
        dist.barrier()
        return flag[0].item()
    zero = torch.zeros(1, dtype=torch.int32).npu()
    table = torch.tensor([[[1, 0, 0]]], dtype=torch.int32).npu()
    ids = torch.zeros(1, 1, 1, dtype=torch.int32).npu()
    x = make(1, 1, H, dtype=torch.float16)
    shapes = info_shape, data_shape, [1, 1, 1]
    torch_npu.npu_attention_to_ffn(x, zero, zero, zero, ids, table, name, 2, *shapes, 1)
    dist.barrier()
    begin = time.monotonic()
    torch_npu.npu_attention_to_ffn(x, zero, zero, zero, ids, table, name, 2, *shapes, 1)
    waited = time.monotonic() - begin
    dist.barrier()
    return waited


def test_a_flag_that_is_set_is_waited_for():
    flag, waited = job.run(wait_for_reader, 2, env=A3)
    assert flag == 1
    assert waited > 0.2


def window_errors(rank):
    torch.npu.set_device(rank)
    backend = backend_of(dist.group.WORLD)
    said = []
    for call in (
        backend._get_window_mem,
        lambda: backend._window_register_and_exchange(0, [1 - rank]),
        lambda: backend._window_register_and_exchange(64, [rank]),
        lambda: backend._window_register_and_exchange(64, [1 - rank]),
        lambda: backend._window_register_and_exchange(64, [1 - rank]),
    ):
        try:
            said.append(str(call()))
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_windows_refuse():
    for said in job.run(window_errors, 2):
        assert "must be registered before get" in said[0]
        assert "must be greater than 0" in said[1]
        assert "peer ranks must be other ranks" in said[2]
        assert said[3] == "None"
        assert "cannot be registered repeatedly" in said[4]


def arguments(**changes):
    one = torch.zeros(1, dtype=torch.int32).npu()
    given = {
        "x": make(1, 3, 1024, dtype=torch.float16),
        "session_id": one,
        "micro_batch_id": one,
        "layer_id": one,
        "expert_ids": torch.zeros(1, 3, 1, dtype=torch.int32).npu(),
        "expert_rank_table": torch.tensor([[[1, 0, 0]]], dtype=torch.int32).npu(),
        "group": "softnpu%mirror_2",
        "world_size": 2,
        "ffn_token_info_table_shape": [1, 1, 5],
        "ffn_token_data_shape": [1, 1, 3, 1, 1024],
        "attn_token_info_table_shape": [1, 3, 1],
        "moe_expert_num": 1,
    }
    return {**given, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": make(1, 3, 512, dtype=torch.float16)}, r"'x' must be of width in \[1024, 8192\].*512"),
        ({"x": make(1, 3, 1024)}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        ({"world_size": 4}, r"'world_size' must be the number of ranks.*\(2\)"),
        ({"quant_mode": 1}, "'quant_mode' must be 0 or 2"),
        ({"sync_flag": 2}, "'sync_flag' must be 0 or 1"),
        ({"ffn_start_rank_id": 2}, r"'ffn_start_rank_id' must be in \[0, 2\)"),
        ({"scales": make(1, 1, 1024)}, "'scales' must be None with quant_mode 0"),
        ({"moe_expert_num": 0}, r"'moe_expert_num' must be in \[1, 1024\]"),
        ({"ffn_token_data_shape": [1, 1, 3, 1, 64]}, "'ffn_token_data_shape' must be attention workers.*1024"),
        ({"ffn_token_info_table_shape": [1, 1, 4]}, "'ffn_token_info_table_shape' must be"),
        ({"attn_token_info_table_shape": [1, 3, 2]}, "'attn_token_info_table_shape' must be"),
        ({"expert_ids": torch.ones(1, 3, 1, dtype=torch.int32)}, r"'expert_ids' must be in \[0, moe_expert_num = 1\)"),
        ({"session_id": torch.ones(1, dtype=torch.int32)}, "'session_id' must be in"),
        ({"expert_rank_table": torch.zeros(1, 1, 3, dtype=torch.int32)}, "first column"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    changes = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in changes.items()}
    with as_chip(A3["SOFTNPU_SOC"]), pytest.raises(RuntimeError, match=message):
        torch_npu.npu_attention_to_ffn(**arguments(**changes))


def test_other_chips_have_no_such_operator():
    with (
        as_chip("Ascend910B3"),
        pytest.raises(NotImplementedError, match="family A3"),
    ):
        torch_npu.npu_attention_to_ffn(**arguments())
