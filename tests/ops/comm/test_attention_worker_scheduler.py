"""attention_worker_scheduler and its form in place: which micro batch comes next, and how a wait ends."""

import threading
import time

import pytest
import torch

import torch_npu
from softnpu import settings
from tests.ops.comm.worker_support import Attention, changed, field


@pytest.fixture(autouse=True)
def as_a3():
    with settings.override(soc="Ascend910_9391"):
        yield


def test_one_micro_batch_after_another():
    worker = Attention(2, 3, 2, 8, torch.float16)
    for batch in (0, 1, 0):
        worker.flags[batch] = 1
        assert torch_npu.attention_worker_scheduler_(worker.context) is worker.context
        assert (
            field(worker.context, "attention.micro_batch_id") == batch and worker.flags.sum() == 0
        )


def test_the_functional_form_leaves_the_context_alone():
    worker = Attention(2, 3, 2, 8, torch.float16)
    worker.flags[0] = 1
    before = worker.context.clone()
    after = torch_npu.attention_worker_scheduler(worker.context)
    assert torch.equal(worker.context, before)
    assert field(after, "attention.micro_batch_id") == 0 and worker.flags.sum() == 0


def test_a_stop_ends_the_wait():
    worker = Attention(2, 3, 2, 8, torch.float16)
    worker.flags[0, 0] = 1

    def stop() -> None:
        time.sleep(0.2)
        worker.holder.stop_schedule()

    thread = threading.Thread(target=stop)
    thread.start()
    torch_npu.attention_worker_scheduler_(worker.context)
    thread.join()
    assert field(worker.context, "attention.micro_batch_id") == 1 and worker.flags.sum() == 2


@pytest.mark.parametrize(
    "fields,message",
    [
        ({"schedule_mode": 0}, r"schedule_mode 1 \(attention\), but received 0"),
        ({"micro_batch_num": 0}, "micro_batch_num greater than 0, but received 0"),
        ({"attention__token_data_buf": 0}, "attention.token_data_buf greater than 0"),
        ({"attention__micro_batch_id": 2}, r"attention.micro_batch_id below micro_batch_num \(2\), but received 2"),
        ({"attention__token_info_buf_size": 8}, "attention.token_info_buf_size of at least 48, but received 8"),
        ({"attention__token_info_buf": 4096}, "attention.token_info_buf the address of device memory"),
    ],
)  # fmt: skip
def test_bad_contexts(fields, message):
    worker = Attention(2, 3, 2, 8, torch.float16)
    with pytest.raises(
        RuntimeError, match=f"attention_worker_scheduler_: argument 'self' must have {message}"
    ):
        torch_npu.attention_worker_scheduler_(changed(worker.context, **fields))


def test_bad_tensors():
    with pytest.raises(RuntimeError, match="argument 'self' must be of at least 1024 bytes"):
        torch_npu.attention_worker_scheduler_(torch.zeros(8, dtype=torch.int8).npu())
    with pytest.raises(RuntimeError, match="argument 'self' must be contiguous"):
        torch_npu.attention_worker_scheduler_(torch.zeros(2048, dtype=torch.int8).npu()[::2])
