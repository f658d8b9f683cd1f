"""npu_attention_worker_combine against plain sums over the window."""

import threading
import time

import pytest
import torch

import torch_npu
from tests.ops.comm.worker_support import Attention, changed, field
from tests.ops.support import assert_accurate, make

LAYER = torch.tensor([4], dtype=torch.int32)


def reference(worker: Attention, batch: int, scales: torch.Tensor) -> torch.Tensor:
    rows = worker.rows[batch].cpu().double()
    weights = torch.cat([scales.cpu().double(), torch.ones(scales.shape[0], 1).double()], 1)
    return torch.einsum("tkh,tk->th", rows, weights)


@pytest.mark.parametrize(
    "dtype,code", [(torch.float16, 0), (torch.bfloat16, 1), (torch.float16, torch.half)]
)
@pytest.mark.parametrize("hidden", [1, 40])
def test_the_micro_batch_of_the_context(dtype, code, hidden):
    worker, scales = Attention(2, 5, 4, hidden, dtype), make(5, 3)
    y, layer = torch_npu.npu_attention_worker_combine(
        worker.context, scales, LAYER.npu(), hidden, token_dtype=code
    )
    assert y.dtype == dtype and y.shape == (5, hidden)
    want = reference(worker, 1, scales)  # a new context names the last micro batch
    assert_accurate(y, want, want.to(dtype))
    assert layer.tolist() == [5] and layer.dtype == torch.int32
    assert field(worker.context, "attention.micro_batch_id") == 1


def test_the_next_micro_batch_is_waited_for():
    worker, scales = Attention(2, 3, 3, 16, torch.float16), make(3, 2)

    def arrive() -> None:
        time.sleep(0.2)
        worker.flags[0] = 1

    thread = threading.Thread(target=arrive)
    thread.start()
    y, _ = torch_npu.npu_attention_worker_combine(
        worker.context, scales, LAYER.npu(), 16, need_schedule=1
    )
    thread.join()
    want = reference(worker, 0, scales)
    assert_accurate(y, want, want.half())
    assert worker.flags.sum() == 0 and field(worker.context, "attention.micro_batch_id") == 0
    worker.flags[1] = 1
    y, _ = torch_npu.npu_attention_worker_combine(
        worker.context, scales, LAYER.npu(), 16, need_schedule=1
    )
    want = reference(worker, 1, scales)
    assert_accurate(y, want, want.half())


def test_compiled():
    worker, scales = Attention(1, 3, 3, 16, torch.bfloat16), make(3, 2)

    def combine(context, scales, layer):
        return torch_npu.npu_attention_worker_combine(context, scales, layer, 16, token_dtype=1)

    compiled = torch.compile(combine, backend="npu", fullgraph=True)
    for got, want in zip(
        compiled(worker.context, scales, LAYER.npu()), combine(worker.context, scales, LAYER.npu()), strict=True
    ):  # fmt: skip
        assert torch.equal(got, want)


def given() -> dict:
    worker = Attention(1, 3, 3, 16, torch.float16)
    return {"schedule_context": worker.context, "expert_scales": make(3, 2), "layer_id": LAYER.npu(),
            "hidden_size": 16}  # fmt: skip


WRONG = [
    ({"schedule_context": lambda: torch.zeros(1023, dtype=torch.int8).npu()},
     "'schedule_context' must be of at least 1024 bytes, but received 1023"),
    ({"schedule_context": lambda: torch.zeros(1024).npu()}, "'schedule_context' must be of dtype"),
    ({"expert_scales": lambda: make(3, 65)}, "'expert_scales' must be of at most 64 experts a token"),
    ({"layer_id": lambda: torch.zeros(2, dtype=torch.int32).npu()}, r"'layer_id' must be of shape \(1\)"),
    ({"token_dtype": 2}, r"'token_dtype' must be 0 \(float16\) or 1 \(bfloat16\), but received 2"),
    ({"need_schedule": 2}, "'need_schedule' must be 0 or 1"),
    ({"hidden_size": 0}, "'hidden_size' must be greater than 0"),
    ({"schedule_context": lambda: torch.zeros(1024, dtype=torch.int8).npu()},
     "'schedule_context' must have attention.token_data_buf the address of device memory .*, but received 0"),
]  # fmt: skip


@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    arguments = {**given(), **{k: v() if callable(v) else v for k, v in change.items()}}
    with pytest.raises(RuntimeError, match=f"npu_attention_worker_combine: argument {message}"):
        torch_npu.npu_attention_worker_combine(**arguments)


def test_an_address_of_the_host_is_refused():
    worker = Attention(1, 3, 3, 16, torch.float16)
    host = torch.zeros(1 << 16, dtype=torch.int8)
    context = changed(worker.context, attention__token_data_buf=host.data_ptr())
    with pytest.raises(
        RuntimeError, match="must have attention.token_data_buf the address of device memory"
    ):
        torch_npu.npu_attention_worker_combine(context, make(3, 2), LAYER.npu(), 16)
