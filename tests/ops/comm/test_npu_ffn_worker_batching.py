"""npu_ffn_worker_batching against plain loops over the window."""

import pytest
import torch

import torch_npu
from softnpu import settings
from tests.ops.comm.worker_support import Ffn, changed, field

SESSIONS, BATCHES, TOKENS, EXPERTS, SIZE = 3, 2, 4, 2, 512
MASKED = 2**31 - 1
HIDDEN = {0: 100, 1: 256, 2: 300}
DTYPES = {0: torch.float16, 1: torch.bfloat16, 2: torch.int8}


def choices(session: int) -> torch.Tensor:
    ids = torch.randint(0, 5, (TOKENS, EXPERTS), generator=torch.Generator().manual_seed(session))
    ids[session, 0] = MASKED
    ids[0, 1] = 1_000_000
    return ids.int()


def expected(worker: Ffn, batch_of: dict[int, int], kind: int) -> list[tuple]:
    """(expert, session, batch, token, slot, bytes of the row, factor), in order."""
    rows = []
    width = HIDDEN[kind] * DTYPES[kind].itemsize
    for session, batch in batch_of.items():
        for token in range(TOKENS):
            for slot in range(EXPERTS):
                expert = int(choices(session)[token, slot])
                if expert < 1_000_000:
                    data = worker.data[session, batch, token, slot].cpu()
                    factor = (
                        data[width : width + 4].clone().view(torch.float32).item()
                        if kind == 2
                        else 0.0
                    )
                    rows.append(
                        (expert, session, batch, token, slot, data[:width].tolist(), factor)
                    )
    return sorted(rows, key=lambda row: row[0])  # stable


def compare(results, rows, kind) -> None:
    y, groups, sessions, batches, tokens, slots, factors, count = (r.cpu() for r in results)
    room = SESSIONS * TOKENS * EXPERTS
    assert (
        count.tolist() == [len(rows)]
        and y.shape == (room, HIDDEN[kind])
        and y.dtype == DTYPES[kind]
    )
    assert y[: len(rows)].contiguous().view(torch.int8).tolist() == [r[5] for r in rows]
    for column, got in enumerate((sessions, batches, tokens, slots), 1):
        assert got.dtype == torch.int32 and got.tolist()[: len(rows)] == [r[column] for r in rows]
    assert torch.equal(
        factors[: len(rows)].nan_to_num(7), torch.tensor([r[6] for r in rows]).nan_to_num(7)
    )
    numbers = sorted({r[0] for r in rows})
    want = [[n, sum(r[0] == n for r in rows)] for n in numbers] + [[0, 0]] * (8 - len(numbers))
    assert groups.tolist() == want and groups.dtype == torch.int64
    assert y[len(rows) :].contiguous().view(torch.int8).abs().sum() == 0


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_all_sessions_of_the_next_micro_batch(kind):
    worker = Ffn(SESSIONS, BATCHES, TOKENS, EXPERTS, SIZE)
    for session in range(SESSIONS):
        worker.send(session, 0, 7, choices(session))
    rows = expected(worker, dict.fromkeys(range(SESSIONS), 0), kind)
    results = torch_npu.npu_ffn_worker_batching(
        worker.context,
        8,
        [SESSIONS, TOKENS, EXPERTS, HIDDEN[kind]],
        token_dtype=kind,
        need_schedule=1,
    )
    compare(results, rows, kind)
    assert field(worker.context, "ffn.polling_index") == 1
    assert worker.table[:, 0, 0].sum() == 0 and (worker.table[:, 0, 2:] == MASKED).all()


@pytest.mark.parametrize("kind", [0, 2])
def test_what_the_scheduler_has_listed(kind):
    worker = Ffn(SESSIONS, BATCHES, TOKENS, EXPERTS, SIZE)
    worker.send(0, 1, 3, choices(0))
    worker.send(2, 0, 5, choices(2))
    with settings.override(soc="Ascend910_9391"):
        torch_npu.ffn_worker_scheduler_(worker.context, sync_group_size=1)
    rows = expected(worker, {0: 1, 2: 0}, kind)
    results = torch_npu.npu_ffn_worker_batching(
        worker.context, 8, [SESSIONS, TOKENS, EXPERTS, HIDDEN[kind]], token_dtype=kind
    )
    compare(results, rows, kind)


def test_nobody_has_sent_anything():
    worker = Ffn(SESSIONS, BATCHES, TOKENS, EXPERTS, SIZE)
    y, groups, *_, count = torch_npu.npu_ffn_worker_batching(worker.context, 2, [1, 1, 1, 16])
    assert count.tolist() == [0] and groups.tolist() == [[0, 0], [0, 0]] and y.abs().sum() == 0


WRONG = [
    ({"expert_num": 0}, r"'expert_num' must be in \(0, 8192\], but received 0"),
    ({"max_out_shape": [0, 4, 2, 8]}, r"'max_out_shape' must be A in \(0, 1024\]"),
    ({"max_out_shape": [3, 4, 65, 8]}, r"'max_out_shape' must be .* K \+ 1 in \(0, 64\]"),
    ({"token_dtype": 3}, "'token_dtype' must be 0, 1 or 2, but received 3"),
    ({"need_schedule": 2}, "'need_schedule' must be 0 or 1"),
    ({"layer_num": 9}, r"'layer_num' must be in \[0, 8\], but received 9"),
    ({"max_out_shape": [3, 4, 2, 300]}, "'schedule_context' must have attn_to_ffn_token_size of at least 600 bytes"),
    ({"max_out_shape": [1, 4, 2, 8]}, r"'schedule_context' must have session_num and tokens that fit .* \(8 rows\)"),
]  # fmt: skip


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    worker = Ffn(SESSIONS, BATCHES, TOKENS, EXPERTS, SIZE)
    for session in range(SESSIONS):
        worker.send(session, 0, 7, choices(session))
    given = {"schedule_context": worker.context, "expert_num": 8, "max_out_shape": [3, 4, 2, 8],
             "need_schedule": 1, **change}  # fmt: skip
    with pytest.raises(RuntimeError, match=f"npu_ffn_worker_batching: argument {message}"):
        torch_npu.npu_ffn_worker_batching(**given)


def test_a_list_longer_than_the_sessions_is_refused():
    worker = Ffn(SESSIONS, BATCHES, TOKENS, EXPERTS, SIZE)
    context = changed(worker.context, ffn__out_num=4)
    with pytest.raises(
        RuntimeError, match=r"must have ffn.out_num of at most session_num \(3\), but received 4"
    ):
        torch_npu.npu_ffn_worker_batching(context, 8, [4, 4, 2, 8])
