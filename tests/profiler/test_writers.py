"""Result files of a profile whose numbers are known."""

from __future__ import annotations

import inspect
import json

import pytest

from tests.profiler.support import (
    analyzed,
    communication,
    header,
    make_profile,
    query,
    read_csv,
    rows,
    task,
    us,
)
from torch_npu.profiler import _facts, _intervals, writers
from torch_npu.profiler._model import Model, group_id
from torch_npu.profiler.writers import _csv


def test_intervals():
    spans = _intervals.merge([(5, 9), (0, 2), (8, 12), (2, 3)])
    assert spans == [(0, 3), (5, 12)]
    assert _intervals.subtract([(0, 10)], [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert _intervals.subtract([(0, 4), (6, 8)], []) == [(0, 4), (6, 8)]
    assert _intervals.gaps(spans) == [(3, 5)]
    assert _intervals.clip(spans, 2, 6) == [(2, 3), (5, 6)]
    assert _intervals.total(spans) == 10


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0.000"), (7, "0.007"), (999, "0.999"), (1000, "1.000"), (1_234_567, "1234.567"), (-1500, "-1.500")],
)  # fmt: skip
def test_microseconds_are_exact(ns, text):
    assert _csv.us(ns) == text


@pytest.mark.parametrize(
    ("name", "kind", "core"),
    [
        ("aten::addmm", "MatMulV2", "AI_CORE"),
        ("aten::add", "Add", "AI_VECTOR_CORE"),
        ("aten::add_", "InplaceAdd", "AI_VECTOR_CORE"),
        ("npu::npu_rms_norm", "RmsNorm", "AI_VECTOR_CORE"),
        ("npu::npu_fusion_attention", "FlashAttentionScore", "MIX_AIC"),
        ("aten::convolution_overrideable", "Conv2D", "AI_CORE"),
    ],
)
def test_kernels_are_those_of_the_operators_facts(name, kind, core):
    assert _facts.kernel(name) == (kind, core)


def test_what_ai_cores_cannot_hold_runs_on_the_ai_cpu(tmp_path):
    double = [[[4, 8], "torch.float64", 2]]
    data = rows() | {"task": [task("aten::addmm", 0, 1, 1, inputs=double)]}
    found = read_csv(analyzed(tmp_path, data, profiler_level="Level1") / "kernel_details.csv")
    assert [r["Accelerator Core"] for r in found if r["Type"] == "MatMulV2"] == ["AI_CPU"]


def test_step_trace_time(tmp_path):
    first, second = read_csv(analyzed(tmp_path) / "step_trace_time.csv")
    expected = {
        "Device_id": "0", "Step": "3", "Computing": "240.0", "Communication(Not Overlapped)": "50.0",
        "Overlapped": "50.0", "Communication": "100.0", "Free": "470.0", "Stage": "760.0", "Bubble": "0.0",
        "Communication(Not Overlapped and Exclude Receive)": "50.0", "Preparing": "140.0",
    }  # fmt: skip
    assert first == expected and second == {**expected, "Step": "4"}


def test_a_receive_is_a_bubble(tmp_path):
    data = rows()
    data["communication"] = [communication("receive", 600, 700, peer=1)]
    row = read_csv(analyzed(tmp_path, data) / "step_trace_time.csv")[0]
    assert row["Bubble"] == "100.0" and row["Stage"] == "660.0"
    assert row["Communication(Not Overlapped and Exclude Receive)"] == "0.0"


def test_operator_details(tmp_path):
    found = read_csv(analyzed(tmp_path) / "operator_details.csv")
    assert "aten::copy_inside_the_task" not in {row["Name"] for row in found}
    assert not any(row["Name"].startswith("ProfilerStep") for row in found)
    linear = next(row for row in found if row["Name"] == "aten::linear")
    assert (linear["Host Self Duration(us)"], linear["Host Total Duration(us)"]) == (
        "30.000",
        "200.000",
    )
    assert (linear["Device Self Duration(us)"], linear["Device Total Duration(us)"]) == (
        "0.000",
        "140.000",
    )
    addmm = next(row for row in found if row["Name"] == "aten::addmm")
    assert addmm["Device Self Duration With AICore(us)"] == "140.000"
    assert addmm["Call Stack"] == "model.py(7): forward;\r\ntrain.py(3): <module>"


def test_kernel_details_at_level0(tmp_path):
    out = analyzed(tmp_path)
    assert header(out / "kernel_details.csv") == [
        "Step Id", "Device_id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)",
        "Block Num", "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types",
        "Output Formats",
    ]  # fmt: skip
    found = read_csv(out / "kernel_details.csv")
    assert (
        found[0]["Type"] == found[0]["Input Shapes"] == "N/A"
        and found[0]["Duration(us)"] == "140.000"
    )
    assert found[1]["Wait Time(us)"] == "140.000"
    assert found[-1]["Accelerator Core"] == "COMMUNICATION" and found[-1]["Name"].startswith(
        "hcom_allReduce__"
    )
    assert not (out / "op_statistic.csv").exists() and not (out / "communication.json").exists()


def test_kernel_details_at_level1(tmp_path):
    found = read_csv(analyzed(tmp_path, profiler_level="Level1") / "kernel_details.csv")
    assert (
        found[0]["Type"] == "MatMulV2"
        and found[0]["Input Shapes"] == '"4,8"'
        and found[0]["Task ID"] == "0"
    )
    assert found[0]["Start Time(us)"] == "1700000000000140.000" and found[0]["Block Num"] == "N/A"
    assert found[0]["cube_utilization(%)"] == "N/A"


def test_a_stream_does_one_thing_at_a_time(tmp_path):
    data = {
        "task": [
            task("aten::add", 0, 10, 1),
            task("aten::mul", 5, 20, 2, thread=9),
            task("aten::neg", 6, 8, 3),
        ]
    }
    profile = make_profile(tmp_path, data)
    assert [(t.start, t.end) for t in Model(profile).tasks] == [
        (us(0), us(10)), (us(10), us(20)), (us(20), us(20)),
    ]  # fmt: skip


def test_op_statistic(tmp_path):
    product, add = read_csv(analyzed(tmp_path, profiler_level="Level1") / "op_statistic.csv")
    assert (product["OP Type"], product["Count"], product["Total Time(us)"]) == (
        "MatMulV2",
        "2",
        "280.000",
    )
    assert (add["Avg Time(us)"], add["Ratio(%)"]) == ("100.000", "41.667")


def test_api_statistic(tmp_path):
    found = {
        row["API Name"]: row
        for row in read_csv(analyzed(tmp_path, profiler_level="Level1") / "api_statistic.csv")
    }
    assert found["launch"]["Count"] == "4" and found["launch"]["Level"] == "node"
    assert found["aclnnAdd"]["Time(us)"] == "200.000" and found["aclnnAdd"]["Variance"] == "0.0"
    assert found["hcom_allReduce_"]["Level"] == "communication"


def test_task_time(tmp_path):
    found = read_csv(analyzed(tmp_path) / "task_time.csv")
    assert found[0]["kernel_type"] == "KERNEL_AICORE" and found[0]["task_time(us)"] == "140.000"
    assert found[0]["task_stop(us)"] == "1700000000000280.000"


def test_memory_files(tmp_path):
    out = analyzed(tmp_path)
    made, kept = read_csv(out / "operator_memory.csv")
    assert (made["Name"], made["Size(KB)"], made["Duration(us)"]) == (
        "aten::empty",
        "2.0",
        "368.000",
    )
    assert made["Active Duration(us)"] == "369.000" and kept["Name"] == "aten::add"
    assert float(made["Allocation Total Allocated(MB)"]) == (2**20 + 2048) / 2**20
    assert kept["Release Time(us)"] == "" == kept["Release Total Active(MB)"]
    records = read_csv(out / "memory_record.csv")
    assert [row["Component"] for row in records] == ["APP"] + ["PTA", "PTA+GE"] * 4
    assert float(records[-1]["Total Active(MB)"]) == (2**20 + 4096) / 2**20
    assert read_csv(out / "npu_module_mem.csv")[0]["Total Reserved(MB)"] == "2.0"


def test_communication(tmp_path):
    out = analyzed(tmp_path, profiler_level="Level1", rank=0)
    steps = json.loads((out / "communication.json").read_text("utf-8"))
    assert set(steps) == {"step3", "step4"} and steps["step3"]["p2p"] == {}
    name = f"hcom_allReduce__{group_id('group_0')[-3:]}_0_1@{group_id('group_0')}"
    entry = steps["step3"]["collective"][name]
    assert entry["Communication Time Info"]["Elapse Time(ms)"] == 0.1
    moved = 4096 * 3 / 4 / 1e6
    assert entry["Communication Bandwidth Info"]["HCCS"]["Transit Size(MB)"] == pytest.approx(moved)
    total = steps["step4"]["collective"]["Total Op Info"]
    assert total["Communication Bandwidth Info"]["SDMA"]["Transit Time(ms)"] == 0.1
    matrix = json.loads((out / "communication_matrix.json").read_text("utf-8"))
    links = matrix["step3"]["collective"][f"allreduce-total@{group_id('group_0')}"]
    assert set(links) == {"0-1", "0-2", "0-3"}
    assert links["0-2"]["Transit Size(MB)"] == pytest.approx(moved / 3)


def test_groups_do_not_merge(tmp_path):
    """The same operation in two groups, at the same moment."""
    data = rows()
    data["communication"] = [
        communication("allReduce", 470, 570),
        communication("allReduce", 480, 500, group="pair", ranks=[0, 2]),
    ]
    out = analyzed(tmp_path, data, profiler_level="Level1", rank=0)
    step = json.loads((out / "communication.json").read_text("utf-8"))["step3"]["collective"]
    whole, pair = group_id("group_0"), group_id("pair")
    assert set(step) == {
        f"hcom_allReduce__{whole[-3:]}_0_1@{whole}", f"hcom_allReduce__{pair[-3:]}_0_1@{pair}", "Total Op Info",
    }  # fmt: skip
    matrix = json.loads((out / "communication_matrix.json").read_text("utf-8"))
    links = matrix["step3"]["collective"]
    assert set(links[f"allreduce-total@{whole}"]) == {"0-1", "0-2", "0-3"}
    assert set(links[f"allreduce-total@{pair}"]) == {"0-1"}
    names = query(out / "analysis.db", "select distinct group_name from CommAnalyzerTime")
    assert {name for (name,) in names} == {whole, pair}


def test_point_to_point_uses_ranks_of_the_group(tmp_path):
    data = rows()
    data["communication"] = [communication("send", 600, 700, ranks=[4, 6], rank=4, peer=6)]
    out = analyzed(tmp_path, data, profiler_level="Level1", rank=4)
    matrix = json.loads((out / "communication_matrix.json").read_text("utf-8"))
    assert set(matrix["step3"]["p2p"][f"send-top1@{group_id('group_0')}"]) == {"0-1"}


def test_writers_of_na_say_so_in_the_list_of_differences():
    """docs/differences.md is made from these paragraphs."""
    for writer in writers.TEXT + writers.DB:
        if "NA" in vars(writer) or '"N/A"' in inspect.getsource(writer):
            assert "\n\nDiffers from upstream: " in (writer.__doc__ or ""), writer.__name__


COUNTER_FILES = {
    "l2_cache.csv": ["Device_id", "Stream Id", "Task Id", "Hit Rate", "Victim Rate", "Op Name"],
    "soc_pmu.csv": ["Device_id", "Stream Id", "Task Id", "TLB Miss Rate", "TLB Hit Rate", "Op Name"],
    "hccs.csv": ["Device_id", "Mode", "Max", "Min", "Average"],
    "pcie.csv": ["Device_id", "Mode", "Min", "Max", "Avg"],
    "nic.csv": [
        "Device_id", "Timestamp(us)", "Bandwidth(MB/s)", "Rx Bandwidth efficiency(%)", "rxPacket/s", "rxError rate(%)",
        "rxDropped rate(%)", "Tx Bandwidth efficiency(%)", "txPacket/s", "txError rate(%)", "txDropped rate(%)", "funcId",
    ],
}  # fmt: skip


def test_counters_are_not_invented(tmp_path):
    out = analyzed(tmp_path, l2_cache=True, sys_io=True, sys_interconnection=True)
    for name, columns in COUNTER_FILES.items():
        assert header(out / name) == columns
        assert "N/A" in read_csv(out / name)[0].values()
    assert header(out / "roce.csv") == COUNTER_FILES["nic.csv"]
    for table in ("NIC", "ROCE", "HCCS", "PCIE"):
        assert query(out / "ascend_pytorch_profiler.db", f"select count(*) from {table}") == [(0,)]
