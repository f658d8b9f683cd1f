"""trace_view.json of a profile whose numbers are known."""

from __future__ import annotations

import gc
import threading

import torch

import torch_npu.profiler as prof
from tests.profiler.support import (
    MAIN,
    analyzed,
    communication,
    op,
    outputs,
    read_trace,
    rows,
    run,
    train_step,
    us,
)
from tests.profiler.timeline import check_timeline


def test_processes_and_tracks(tmp_path):
    events = read_trace(analyzed(tmp_path, profiler_level="Level1", mstx=True) / "trace_view.json")
    named = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(named) == {
        "Python", "Python GC", "Mstx", "CANN", "Ascend Hardware", "Communication", "Overlap Analysis", "NPU MEM",
    }  # fmt: skip
    labels = {e["pid"]: e["args"]["labels"] for e in events if e["name"] == "process_labels"}
    assert labels[named["Ascend Hardware"]] == "NPU 0" and labels[named["Python"]] == "CPU"
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {
        "Stream 2",
        "Group group_0 Communication",
        "Computing",
        "Free",
        f"Thread {MAIN}",
    } <= tracks


def test_level0_has_no_cann_layer(tmp_path):
    events = read_trace(analyzed(tmp_path) / "trace_view.json")
    assert not any(e.get("cat") in ("cann", "HostToDevice") for e in events)


def test_flows_start_and_end_on_slices(tmp_path):
    events = read_trace(analyzed(tmp_path, profiler_level="Level2") / "trace_view.json")
    check_timeline(events)
    kinds = {e["cat"] for e in events if e["ph"] == "s"}
    assert kinds == {"async_npu", "async_task_queue", "fwdbwd", "HostToDevice", "MsTx"}
    launched = [e for e in events if e.get("cat") == "async_npu" and e["ph"] == "s"]
    assert len(launched) == 4


def test_overlap_analysis(tmp_path):
    events = read_trace(analyzed(tmp_path) / "trace_view.json")
    spans = {
        name: sum(e["dur"] for e in events if e.get("cat") == "overlap" and e["name"] == name)
        for name in ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
    }
    assert spans == {
        "Computing": 480, "Communication": 200, "Communication(Not Overlapped)": 100, "Free": 140 + 570 + 140,
    }  # fmt: skip


def test_the_queue_is_there_unless_switched_off(tmp_path, monkeypatch):
    events = read_trace(analyzed(tmp_path / "on") / "trace_view.json")
    queue = [e for e in events if e.get("cat") in ("enqueue", "dequeue")]
    assert {e["name"] for e in queue} == {
        "Enqueue@aclnnMatMulV2", "Enqueue@aclnnAdd", "Dequeue@aclnnMatMulV2", "Dequeue@aclnnAdd",
    }  # fmt: skip
    assert {e["args"]["correlation_id"] for e in queue} == {1, 2, 11, 12}
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "0")
    events = read_trace(analyzed(tmp_path / "off") / "trace_view.json")
    assert not any(e.get("cat") in ("enqueue", "dequeue", "async_task_queue") for e in events)


def test_memory_is_counted(tmp_path):
    events = read_trace(analyzed(tmp_path) / "trace_view.json")
    values = [e["args"]["KB"] for e in events if e["ph"] == "C" and e["name"] == "PTA Allocated"]
    assert values == [1026, 1030, 1028, 1028]


def test_ranges_that_cross_get_tracks_of_their_own(tmp_path):
    data = {
        "mark": [
            ["a", "d", us(0), us(10), None, 5],
            ["b", "d", us(5), us(15), None, 5],
            ["c", "d", us(6), us(7), None, 5],
        ]
    }
    events = read_trace(analyzed(tmp_path, data, mstx=True) / "trace_view.json")
    check_timeline(events)
    track = {e["name"]: e["tid"] for e in events if e.get("cat") == "mstx"}
    assert track["a"] == track["c"] != track["b"]


def test_operators_that_cross_are_cut(tmp_path):
    data = {"op": [op("outer", 0, 10), op("crossing", 5, 15), op("next", 12, 14)]}
    check_timeline(read_trace(analyzed(tmp_path, data) / "trace_view.json"))


def test_spans_whose_ends_are_nanoseconds_apart_nest_for_every_reader(tmp_path):
    """Perfetto rounds times since the epoch to a quarter of a microsecond, and drops spans that then overlap."""
    calls = [
        op(f"f{depth}", 10 + 0.013 * depth + 7.001 * turn, 17 - 0.002 * depth + 7.001 * turn, kind="python")
        for turn in range(40)
        for depth in range(20)
    ]  # fmt: skip
    events = read_trace(analyzed(tmp_path, {"op": calls}) / "trace_view.json")
    check_timeline(events)
    spans = [e for e in events if e.get("cat") == "python_function"]
    assert len(spans) == 800
    lengths = {row[0]: (row[2] - row[1]) / 1000 for row in calls}
    assert all(0 <= lengths[e["name"]] - e["dur"] <= 0.52 for e in spans)


def test_spans_with_room_around_them_keep_their_length(tmp_path):
    events = read_trace(analyzed(tmp_path) / "trace_view.json")
    assert {e["dur"] for e in events if e.get("cat") == "kernel"} == {140, 100}
    assert {e["dur"] for e in events if e["name"] == "aten::addmm"} == {170}


def test_communication_in_flight_together_gets_further_tracks(tmp_path):
    data = rows()
    data["communication"] = [
        communication("allReduce", 400, 500),
        communication("allReduce", 450, 600),
        communication("send", 450, 600, group="other", ranks=[0, 1], peer=1),
    ]
    events = read_trace(analyzed(tmp_path, data, profiler_level="Level1") / "trace_view.json")
    check_timeline(events)
    ops = [e for e in events if e.get("cat") == "hccl" and e["name"].startswith("hcom")]
    assert len({e["tid"] for e in ops}) == 3
    names = {
        e["tid"]: e["args"]["name"]
        for e in events
        if e["name"] == "thread_name" and e["pid"] == ops[0]["pid"]
    }
    assert sorted(names[e["tid"]] for e in ops) == [
        "Group group_0 Communication", "Group group_0 Communication", "Group other Communication",
    ]  # fmt: skip


class _Named(torch.autograd.Function):
    """Its backward makes the thread of autograd known to Python."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        assert threading.current_thread() is not threading.main_thread()
        return grad


def test_backward_is_joined_where_autograd_ran_python_before(tmp_path):
    _Named.apply(torch.ones(4, device="npu", requires_grad=True)).sum().backward()
    run(tmp_path)
    flows = check_timeline(read_trace(outputs(tmp_path) / "trace_view.json"))
    assert flows["fwdbwd"] > 0


def test_a_real_run_is_well_formed(tmp_path):
    """Python calls, two threads, two streams, marks, memory and garbage collections at once."""
    config = prof._ExperimentalConfig(profiler_level="Level2", mstx=True, gc_detect_threshold=0)
    side = torch.npu.Stream()
    with prof.profile(
        schedule=prof.schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=prof.tensorboard_trace_handler(str(tmp_path)), record_shapes=True, profile_memory=True,
        with_stack=True, with_modules=True, experimental_config=config,
    ) as profiler:  # fmt: skip
        for _ in range(3):
            with torch.npu.mstx.annotate("step", torch.npu.current_stream()):
                train_step()
            with torch.npu.stream(side):
                torch.ones(64, device="npu").exp()
            gc.collect(0)
            profiler.step()
    flows = check_timeline(read_trace(outputs(tmp_path) / "trace_view.json"))
    assert set(flows) == {"async_npu", "async_task_queue", "fwdbwd", "HostToDevice", "MsTx"}
    assert flows["async_npu"] == flows["HostToDevice"] == flows["async_task_queue"] > 10
