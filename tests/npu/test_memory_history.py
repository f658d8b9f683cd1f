"""Snapshots and the history of device memory."""

import pickle

import pytest
import torch

import torch_npu  # noqa: F401


@pytest.fixture(autouse=True)
def no_history():
    torch.npu.init()
    torch.npu.empty_cache()
    yield
    torch.npu.memory._record_memory_history(None)


def test_snapshot_describes_segments_and_blocks():
    x = torch.empty(3 * 2**20, dtype=torch.uint8, device="npu")
    segment = next(
        s
        for s in torch.npu.memory_snapshot()
        if s["address"] <= x.data_ptr() < s["address"] + s["total_size"]
    )
    assert segment["device"] == 0 and segment["segment_type"] == "large"
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    block = next(b for b in segment["blocks"] if b["address"] == x.data_ptr())
    assert (block["size"], block["state"]) == (3 * 2**20, "active_allocated")
    assert segment["allocated_size"] >= 3 * 2**20
    del x


def test_history_names_the_caller():
    torch.npu.memory._record_memory_history()

    def makes_a_tensor():
        return torch.empty(2**20, dtype=torch.uint8, device="npu")

    x = makes_a_tensor()
    address = x.data_ptr()
    del x
    events = [
        e for e in torch.npu.memory._snapshot()["device_traces"][0] if e.get("addr") == address
    ]
    assert [e["action"] for e in events][:3] == ["alloc", "free_requested", "free_completed"] or {
        "alloc",
        "free_requested",
        "free_completed",
    } <= {e["action"] for e in events}
    alloc = next(e for e in events if e["action"] == "alloc")
    assert "makes_a_tensor" in [f["name"] for f in alloc["frames"]]
    assert {"filename", "line", "name"} <= set(alloc["frames"][0])
    torch.npu.memory._record_memory_history(None)
    torch.ones(1, device="npu")


@pytest.mark.parametrize("context", ["all", "alloc"])
def test_who_frees_is_kept_with_context_all(context):
    torch.npu.memory._record_memory_history(context=context)

    def drops_a_tensor(held):
        held.clear()

    held = [torch.empty(2**20, dtype=torch.uint8, device="npu")]
    address = held[0].data_ptr()
    drops_a_tensor(held)
    events = torch.npu.memory._snapshot()["device_traces"][0]
    (freed,) = (e for e in events if (e.get("addr"), e["action"]) == (address, "free_requested"))
    names = [f["name"] for f in freed["frames"]]
    assert ("drops_a_tensor" in names) == (context == "all")


def test_a_block_that_is_freed_while_an_exception_passes():
    torch.npu.memory._record_memory_history(context="all")

    def fails():
        x = torch.empty(2**20, dtype=torch.uint8, device="npu")
        raise ValueError(str(x.shape))

    with pytest.raises(ValueError, match="1048576"):
        fails()


def test_a_backward_pass_allocates_without_a_python_stack():
    x = torch.ones(2**20, device="npu", requires_grad=True)
    y = (x * 2).exp().sum()
    torch.npu.memory._record_memory_history(context="all")
    y.backward()
    events = torch.npu._snapshot()["device_traces"][0]
    (made,) = (e for e in events if (e.get("addr"), e["action"]) == (x.grad.data_ptr(), "alloc"))
    assert made["frames"] == []


def test_context_none_keeps_no_stacks():
    torch.npu.memory._record_memory_history("all", context=None)
    x = torch.empty(2**20, dtype=torch.uint8, device="npu")
    events = [e for e in torch.npu._snapshot()["device_traces"][0] if e.get("addr") == x.data_ptr()]
    assert events and not any(e["frames"] for e in events)


def test_only_the_last_events_are_kept():
    torch.npu.memory._record_memory_history(max_entries=4)
    for _ in range(10):
        torch.empty(2**20, dtype=torch.uint8, device="npu")
    assert len(torch.npu._snapshot()["device_traces"][0]) <= 4


def test_torchs_own_reader_opens_the_dump(tmp_path):
    torch.npu.memory._record_memory_history()
    x = torch.empty(2**20, dtype=torch.uint8, device="npu")
    file = tmp_path / "snapshot.pickle"
    torch.npu.memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    assert {"segments", "device_traces", "allocator_settings"} <= set(snapshot)
    from torch.cuda._memory_viz import segsum, trace_plot

    assert "total_reserved" in segsum(snapshot)
    assert "html" in trace_plot(snapshot)
    del x


def test_snapshot_of_one_device():
    x = torch.ones(1, device="npu:1")
    snapshot = torch.npu._snapshot(device=1)
    assert {s["device"] for s in snapshot["segments"]} == {1}
    del x


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"enabled": "some"}, "expected enabled to be None"),
        ({"context": "few"}, "expected context to be None"),
        ({"stacks": "rust"}, "expected stacks to be"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        torch.npu.memory._record_memory_history(**arguments)


def test_fx_traces_are_not_supported():
    with pytest.raises(NotImplementedError, match="augment_with_fx_traces"):
        torch.npu._snapshot(augment_with_fx_traces=True)
