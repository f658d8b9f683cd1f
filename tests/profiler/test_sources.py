"""What a profile is collected from: threads, collections of garbage, marks, the host's load, collectives."""

from __future__ import annotations

import gc
import json
import threading

import pytest
import torch
import torch.distributed as dist

import torch_npu.profiler as prof
from tests.profiler.support import (
    handler,
    names,
    outputs,
    query,
    read_csv,
    read_trace,
    run,
    train_step,
)
from torch_npu.profiler import _ExperimentalConfig


def test_child_threads_are_profiled_when_they_ask(tmp_path):
    def work(ask: bool, size: int) -> None:
        if ask:
            prof.profile.enable_profiler_in_child_thread(record_shapes=True)
        torch.ones(size, device="npu").exp()
        if ask:
            prof.profile.disable_profiler_in_child_thread()
            torch.ones(size, device="npu").cos()

    with prof.profile(on_trace_ready=handler(tmp_path)):
        for ask, size in ((True, 5), (False, 6)):
            thread = threading.Thread(target=work, args=(ask, size))
            thread.start()
            thread.join()
    rows = read_csv(outputs(tmp_path) / "operator_details.csv")
    assert [row["Input Shapes"] for row in rows if row["Name"] == "aten::exp"] == ["5"]
    assert "aten::cos" not in {row["Name"] for row in rows}
    kernels = [row["Name"] for row in read_csv(outputs(tmp_path) / "kernel_details.csv")]
    assert sum("Exp" in name for name in kernels) == 2  # the device sees every thread


def test_a_wrong_argument_of_a_child_thread(capsys):
    prof.profile.enable_profiler_in_child_thread(with_stack=1)
    prof.profile.disable_profiler_in_child_thread()
    assert "Invalid parameter with_stack" in capsys.readouterr().out


def test_garbage_collection(tmp_path):
    with prof.profile(
        on_trace_ready=handler(tmp_path), experimental_config=_ExperimentalConfig(gc_detect_threshold=0)
    ):  # fmt: skip
        gc.collect()
    events = read_trace(outputs(tmp_path) / "trace_view.json")
    assert [e for e in events if e.get("cat") == "GC"]
    assert query(outputs(tmp_path) / "ascend_pytorch_profiler.db", "select * from GC_RECORD")


@pytest.mark.parametrize(
    ("domains", "seen"),
    [
        ({}, {"a", "b"}),
        ({"mstx_domain_include": ["one"]}, {"a"}),
        ({"mstx_domain_exclude": ["one"]}, {"b"}),
    ],
)
def test_marks_and_domains(tmp_path, domains, seen):
    with prof.profile(
        on_trace_ready=handler(tmp_path), experimental_config=_ExperimentalConfig(mstx=True, **domains)
    ):  # fmt: skip
        with torch.npu.mstx.annotate("a", torch.npu.current_stream(), domain="one"):
            train_step()
        torch.npu.mstx.mark("b", domain="two")
    events = read_trace(outputs(tmp_path) / "trace_view.json")
    assert {e["name"] for e in events if e.get("cat") == "mstx"} == seen
    messages = query(
        outputs(tmp_path) / "ascend_pytorch_profiler.db",
        "select value from MSTX_EVENTS join STRING_IDS on message = id",
    )
    assert {text for (text,) in messages} == seen


def test_marks_are_off_by_default(tmp_path):
    with prof.profile(on_trace_ready=handler(tmp_path)):
        torch.npu.mstx.mark("quiet")
    assert "quiet" not in (outputs(tmp_path) / "trace_view.json").read_text("utf-8")


def test_the_hosts_load(tmp_path):
    kinds = ["cpu", "mem", "disk", "network"]
    with prof.profile(
        on_trace_ready=handler(tmp_path), experimental_config=_ExperimentalConfig(host_sys=kinds)
    ):
        end = threading.Event()
        end.wait(0.35)
    db = outputs(tmp_path) / "ascend_pytorch_profiler.db"
    for table in ("CPU_USAGE", "HOST_MEM_USAGE", "HOST_DISK_USAGE", "HOST_NETWORK_USAGE"):
        assert query(db, f"select count(*) from {table}")[0][0] >= 1, table


def test_arguments_of_operators(tmp_path):
    run(tmp_path, config={"record_op_args": True})
    (directory,) = tmp_path.glob("*_ascend_pt_op_args")
    entries = json.loads((directory / "op_args.json").read_text("utf-8"))
    mm = next(entry for entry in entries if entry["name"] == "aten::mm")
    assert mm["input_shapes"] == [[8, 8], [8, 8]] and mm["count"] >= 1


def test_nothing_is_recorded_when_off(tmp_path):
    from softnpu import _C

    run(tmp_path)
    train_step()
    assert _C.trace_take() == []
    assert not any("torch_npu" in getattr(c, "__module__", "") for c in gc.callbacks)


def test_an_observer_is_started_and_stopped(tmp_path):
    class Observer:
        calls: list[str] = []

        def start(self) -> None:
            self.calls.append("start")

        def stop(self) -> None:
            self.calls.append("stop")

    with prof.profile(on_trace_ready=handler(tmp_path), execution_trace_observer=Observer()):
        pass
    assert Observer.calls == ["start", "stop"]


def test_attributes_of_operators(tmp_path):
    config = {"profiler_level": "Level1", "op_attr": True, "export_type": ["db"]}
    with prof.profile(
        on_trace_ready=handler(tmp_path), experimental_config=_ExperimentalConfig(**config)
    ):
        torch.ones(2, 3, device="npu").softmax(dim=1).sum(dim=0, keepdim=True)
    found = query(
        outputs(tmp_path) / "ascend_pytorch_profiler.db",
        "select k.value, a.value from COMPUTE_TASK_INFO join STRING_IDS k on k.id = opType "
        "join STRING_IDS a on a.id = attrInfo",
    )
    assert ("SoftmaxV2", "dim:1;half_to_float:False") in found
    assert ("ReduceSum", "dim:[0];keepdim:True") in found


@pytest.fixture
def group():
    dist.init_process_group("hccl", rank=0, world_size=1, store=dist.HashStore())
    yield dist.new_group([0])
    dist.destroy_process_group()


def test_collectives_know_their_group(tmp_path, group):
    level1 = _ExperimentalConfig(profiler_level="Level1")
    with prof.profile(on_trace_ready=handler(tmp_path), experimental_config=level1):
        x = torch.ones(1000, device="npu")
        dist.all_reduce(x)
        dist.all_reduce(x, group=group)
        work = dist.broadcast(x[:10], 0, group=group, async_op=True)
        work.wait()
    found = query(
        outputs(tmp_path) / "ascend_pytorch_profiler_0.db",
        "select o.value, g.value, count, endNs > startNs from COMMUNICATION_OP join STRING_IDS o on o.id = opType "
        "join STRING_IDS g on g.id = groupName order by startNs",
    )
    (profile,) = tmp_path.glob("*_ascend_pt")
    known = json.loads((profile / "profiler_metadata.json").read_text("utf-8"))[
        "parallel_group_info"
    ]
    first, second = known
    assert found == [
        ("hcom_allReduce_", first, 1000, 1), ("hcom_allReduce_", second, 1000, 1), ("hcom_broadcast_", second, 10, 1),
    ]  # fmt: skip
    dist.all_reduce(x)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(
        "c10d::allreduce_", "AutogradPrivateUse1"
    )


def test_collectives_are_seen_under_the_backend(tmp_path):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with prof.profile(
            on_trace_ready=handler(tmp_path), experimental_config=_ExperimentalConfig(profiler_level="Level1")
        ):  # fmt: skip
            train_step()
            dist.all_reduce(torch.ones(1000))
    finally:
        dist.destroy_process_group()
    (row,) = query(
        outputs(tmp_path) / "ascend_pytorch_profiler_0.db",
        "select s.value, count, endNs - startNs from COMMUNICATION_OP join STRING_IDS s on s.id = opType",
    )
    assert row[:2] == ("hcom_allReduce_", 1000) and row[2] > 0
    kernels = read_csv(outputs(tmp_path) / "kernel_details.csv")
    assert kernels[-1]["Accelerator Core"] == "COMMUNICATION"
    assert "communication.json" in names(tmp_path)
    events = read_trace(outputs(tmp_path) / "trace_view.json")
    assert not any(e["name"].startswith("gloo:") for e in events)
