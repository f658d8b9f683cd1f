"""ffn_worker_scheduler and its form in place: which sessions are listed, in groups and all together."""

import pytest
import torch

import torch_npu
from softnpu import settings
from tests.ops.comm.worker_support import Ffn, changed, field


@pytest.fixture(autouse=True)
def as_a3():
    with settings.override(soc="Ascend910_9391"):
        yield


def worker_of(sessions: int = 4, batches: int = 2) -> Ffn:
    return Ffn(sessions, batches, 2, 3, 512)


def experts(session: int) -> torch.Tensor:
    return torch.arange(6).view(2, 3) + 10 * session


def test_all_sessions_together():
    worker = worker_of()
    for batch in (0, 1, 0):
        for session in range(4):
            worker.send(session, batch, session + 5, experts(session))
        torch_npu.ffn_worker_scheduler_(worker.context, sync_group_size=4)
        assert field(worker.context, "ffn.out_num") == 4
        assert field(worker.context, "ffn.polling_index") == (batch + 1) % 2
        assert worker.listed("session_ids", 4) == [0, 1, 2, 3]
        assert worker.listed("layer_ids", 4) == [5, 6, 7, 8]
        assert worker.listed("micro_batch_ids", 4) == [batch] * 4
        assert worker.listed("expert_ids", 4, 6) == [
            experts(s).flatten().tolist() for s in range(4)
        ]
        assert worker.table[:, batch, 0].sum() == 0
        assert (worker.table[:, batch, 2:] == 0x7F7F7F7F).all()


def test_groups_of_two():
    """Sessions 2 and 3 have sent micro batch 1, of 0 and 1 one has: the second group alone is listed."""
    worker = worker_of()
    worker.send(0, 0, 1, experts(0))
    for session in (2, 3):
        worker.send(session, 1, 9, experts(session))
    after = torch_npu.ffn_worker_scheduler(worker.context, sync_group_size=2)
    assert field(after, "ffn.out_num") == 2 and field(worker.context, "ffn.out_num") == 0
    assert worker.listed("session_ids", 2) == [2, 3] and worker.listed("micro_batch_ids", 2) == [
        1,
        1,
    ]
    assert worker.table[0, 0, 0] == 1 and field(after, "ffn.polling_index") == 0


def test_every_ready_group_gives_its_first_micro_batch():
    worker = worker_of(2)
    for session, batch in ((0, 0), (0, 1), (1, 1)):
        worker.send(session, batch, batch, experts(session))
    torch_npu.ffn_worker_scheduler_(worker.context)
    assert worker.listed("session_ids", 2) == [0, 1] and worker.listed("micro_batch_ids", 2) == [
        0,
        1,
    ]
    torch_npu.ffn_worker_scheduler_(worker.context)
    assert field(worker.context, "ffn.out_num") == 1 and worker.listed("micro_batch_ids", 1) == [1]


@pytest.mark.parametrize("group", [1, 4])
def test_stopped(group):
    worker = worker_of()
    worker.holder.stop_schedule()
    torch_npu.ffn_worker_scheduler_(worker.context, sync_group_size=group)
    assert field(worker.context, "ffn.out_num") == 0


@pytest.mark.parametrize(
    "fields,options,message",
    [
        ({"schedule_mode": 1}, {}, r"'self' must have schedule_mode 0 \(FFN\), but received 1"),
        ({}, {"sync_group_size": 3}, r"'self' must have session_num a multiple of sync_group_size \(3\)"),
        ({}, {"sync_group_size": 8}, r"'self' must have session_num a multiple of sync_group_size \(8\)"),
        ({}, {"sync_group_size": 0}, "'sync_group_size' must be greater than 0"),
        ({}, {"execute_mode": 1}, "'execute_mode' must be 0, but received 1"),
        ({"ffn__polling_index": 2}, {}, r"'self' must have ffn.polling_index below micro_batch_num \(2\)"),
        ({"ffn__layer_ids_buf_size": 4}, {}, "'self' must have ffn.layer_ids_buf_size of at least 16"),
        ({"ffn__expert_ids_buf": 64}, {}, "'self' must have ffn.expert_ids_buf the address of device memory"),
    ],
)  # fmt: skip
def test_bad_input(fields, options, message):
    with pytest.raises(RuntimeError, match=f"ffn_worker_scheduler_: argument {message}"):
        torch_npu.ffn_worker_scheduler_(changed(worker_of().context, **fields), **options)
