"""Result files of a profile whose numbers are known."""

from __future__ import annotations

import json

import pytest

from tests.profiler.support import (
    MAIN,
    communication,
    header,
    make_profile,
    op,
    outputs,
    query,
    read_csv,
    read_trace,
    rows,
    task,
    us,
)  # fmt: skip
from torch_npu.profiler import _analyse, _intervals, _kernels
from torch_npu.profiler._model import Model, group_id


def analysed(path, data=None, **config):
    make_profile(path, data, **config)
    _analyse.many(str(path), 1, None)
    return outputs(path)


def test_intervals():
    spans = _intervals.merge([(5, 9), (0, 2), (8, 12), (2, 3)])
    assert spans == [(0, 3), (5, 12)]
    assert _intervals.subtract([(0, 10)], [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert _intervals.subtract([(0, 4), (6, 8)], []) == [(0, 4), (6, 8)]
    assert _intervals.gaps(spans) == [(3, 5)]
    assert _intervals.clip(spans, 2, 6) == [(2, 3), (5, 6)]
    assert _intervals.total(spans) == 10


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
def test_kernels_are_named_after_operators(name, kind, core):
    assert _kernels.op_type(name) == kind
    assert _kernels.core(name, frozenset({"float32"})) == core
    assert _kernels.core(name, frozenset({"float64"})) == "AI_CPU"


def test_step_trace_time(tmp_path):
    first, second = read_csv(analysed(tmp_path) / "step_trace_time.csv")
    expected = {
        "Device_id": "0", "Step": "3", "Computing": "240.0", "Communication(Not Overlapped)": "50.0",
        "Overlapped": "50.0", "Communication": "100.0", "Free": "470.0", "Stage": "760.0", "Bubble": "0.0",
        "Communication(Not Overlapped and Exclude Receive)": "50.0", "Preparing": "140.0",
    }  # fmt: skip
    assert first == expected and second == {**expected, "Step": "4"}


def test_a_receive_is_a_bubble(tmp_path):
    data = rows()
    data["communication"] = [communication("receive", 600, 700, peer=1)]
    row = read_csv(analysed(tmp_path, data) / "step_trace_time.csv")[0]
    assert row["Bubble"] == "100.0" and row["Stage"] == "660.0"
    assert row["Communication(Not Overlapped and Exclude Receive)"] == "0.0"


def test_operator_details(tmp_path):
    found = read_csv(analysed(tmp_path) / "operator_details.csv")
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
    out = analysed(tmp_path)
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
    found = read_csv(analysed(tmp_path, profiler_level="Level1") / "kernel_details.csv")
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
    product, add = read_csv(analysed(tmp_path, profiler_level="Level1") / "op_statistic.csv")
    assert (product["OP Type"], product["Count"], product["Total Time(us)"]) == (
        "MatMulV2",
        "2",
        "280.000",
    )
    assert (add["Avg Time(us)"], add["Ratio(%)"]) == ("100.000", "41.667")


def test_api_statistic(tmp_path):
    found = {
        row["API Name"]: row
        for row in read_csv(analysed(tmp_path, profiler_level="Level1") / "api_statistic.csv")
    }
    assert found["launch"]["Count"] == "4" and found["launch"]["Level"] == "node"
    assert found["aclnnAdd"]["Time(us)"] == "200.000" and found["aclnnAdd"]["Variance"] == "0.0"
    assert found["hcom_allReduce_"]["Level"] == "communication"


def test_task_time(tmp_path):
    found = read_csv(analysed(tmp_path) / "task_time.csv")
    assert found[0]["kernel_type"] == "KERNEL_AICORE" and found[0]["task_time(us)"] == "140.000"
    assert found[0]["task_stop(us)"] == "1700000000000280.000"


def test_memory_files(tmp_path):
    out = analysed(tmp_path)
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
    out = analysed(tmp_path, profiler_level="Level1", rank=0)
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


def test_point_to_point_uses_ranks_of_the_group(tmp_path):
    data = rows()
    data["communication"] = [communication("send", 600, 700, ranks=[4, 6], rank=4, peer=6)]
    out = analysed(tmp_path, data, profiler_level="Level1", rank=4)
    matrix = json.loads((out / "communication_matrix.json").read_text("utf-8"))
    assert set(matrix["step3"]["p2p"][f"send-top1@{group_id('group_0')}"]) == {"0-1"}


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
    out = analysed(tmp_path, l2_cache=True, sys_io=True, sys_interconnection=True)
    for name, columns in COUNTER_FILES.items():
        assert header(out / name) == columns
        assert "N/A" in read_csv(out / name)[0].values()
    assert header(out / "roce.csv") == COUNTER_FILES["nic.csv"]
    for table in ("NIC", "ROCE", "HCCS", "PCIE"):
        assert query(out / "ascend_pytorch_profiler.db", f"select count(*) from {table}") == [(0,)]


# --- databases ---------------------------------------------------------------------------------------------

TABLES = {
    "PYTORCH_API": "startNs endNs globalTid connectionId name sequenceNumber fwdThreadId inputDtypes inputShapes "
    "callchainId type",
    "CONNECTION_IDS": "id connectionId",
    "PYTORCH_CALLCHAINS": "id stack stackDepth",
    "MEMORY_RECORD": "component timestamp totalAllocated totalReserved totalActive streamPtr deviceId",
    "OP_MEMORY": "name size allocationTime releaseTime activeReleaseTime duration activeDuration "
    "allocationTotalAllocated allocationTotalReserved allocationTotalActive releaseTotalAllocated "
    "releaseTotalReserved releaseTotalActive streamPtr deviceId",
    "RANK_DEVICE_MAP": "rankId deviceId",
    "STEP_TIME": "id startNs endNs",
    "GC_RECORD": "startNs endNs globalTid",
    "TASK": "startNs endNs deviceId connectionId globalTaskId globalPid taskType contextId streamId taskId modelId",
    "COMPUTE_TASK_INFO": "name globalTaskId blockNum mixBlockNum taskType opType inputFormats inputDataTypes inputShapes "
    "outputFormats outputDataTypes outputShapes attrInfo opState hf32Eligible",
    "COMMUNICATION_OP": "opName startNs endNs connectionId groupName opId relay retry dataType algType count opType deviceId",
    "CANN_API": "startNs endNs type globalTid connectionId name",
    "STRING_IDS": "id value",
    "META_DATA": "name value",
    "ROCE": "deviceId timestampNs bandwidth rxPacketRate rxByteRate rxPackets rxBytes rxErrors rxDropped txPacketRate "
    "txByteRate txPackets txBytes txErrors txDropped funcId",
    "HCCS": "deviceId timestampNs txThroughput rxThroughput",
    "PCIE": "deviceId timestampNs txPostMin txPostMax txPostAvg txNonpostMin txNonpostMax txNonpostAvg txCplMin txCplMax "
    "txCplAvg txNonpostLatencyMin txNonpostLatencyMax txNonpostLatencyAvg rxPostMin rxPostMax rxPostAvg rxNonpostMin "
    "rxNonpostMax rxNonpostAvg rxCplMin rxCplMax rxCplAvg",
}
ANALYSIS = {
    "CommAnalyzerBandwidth": "hccl_op_name group_name transport_type transit_size transit_time bandwidth "
    "large_packet_ratio package_size count total_duration step type",
    "CommAnalyzerTime": "hccl_op_name group_name start_timestamp elapse_time transit_time wait_time synchronization_time "
    "idle_time step type",
    "CommAnalyzerMatrix": "hccl_op_name group_name src_rank dst_rank transport_type transit_size transit_time bandwidth "
    "step type op_name",
    "StepTraceTime": "deviceId step computing communication_not_overlapped overlapped communication free stage bubble "
    "communication_not_overlapped_and_exclude_receive preparing",
}


def test_tables_and_columns(tmp_path):
    out = analysed(tmp_path, profiler_level="Level1", rank=2, sys_io=True, sys_interconnection=True)
    for file, tables in (("ascend_pytorch_profiler_2.db", TABLES), ("analysis.db", ANALYSIS)):
        for table, columns in tables.items():
            found = [row[1] for row in query(out / file, f"pragma table_info({table})")]
            assert found == columns.split(), table


def test_tables_are_linked(tmp_path):
    db = analysed(tmp_path, profiler_level="Level1") / "ascend_pytorch_profiler.db"
    pairs = query(
        db,
        "select s.value, k.value from PYTORCH_API a join STRING_IDS s on s.id = a.name "
        "join CONNECTION_IDS c on c.id = a.connectionId join TASK t on t.connectionId = c.connectionId "
        "join COMPUTE_TASK_INFO i on i.globalTaskId = t.globalTaskId join STRING_IDS k on k.id = i.opType",
    )
    assert sorted(set(pairs)) == [("aten::add", "Add"), ("aten::addmm", "MatMulV2")]
    stacks = query(
        db,
        "select value, stackDepth from PYTORCH_CALLCHAINS join STRING_IDS s on s.id = stack order by 2",
    )
    assert stacks == [("model.py(7): forward", 0), ("train.py(3): <module>", 1)]
    assert query(db, "select distinct globalTid >> 32, globalTid & 4294967295 from GC_RECORD") == [
        (77, MAIN)
    ]
    assert query(db, "select count(*) from ENUM_API_TYPE")[0][0] >= 9


def test_steps_of_analysis_db_are_microseconds(tmp_path):
    out = analysed(tmp_path, profiler_level="Level1")
    assert query(out / "analysis.db", "select step, computing, free from StepTraceTime") == [
        ("3", 240, 470), ("4", 240, 470),
    ]  # fmt: skip


# --- the timeline ------------------------------------------------------------------------------------------


def test_processes_and_tracks(tmp_path):
    events = read_trace(analysed(tmp_path, profiler_level="Level1", mstx=True) / "trace_view.json")
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
    events = read_trace(analysed(tmp_path) / "trace_view.json")
    assert not any(e.get("cat") in ("cann", "HostToDevice") for e in events)


def test_flows_start_and_end_on_slices(tmp_path):
    events = read_trace(analysed(tmp_path, profiler_level="Level2") / "trace_view.json")
    check_timeline(events)
    kinds = {e["cat"] for e in events if e["ph"] == "s"}
    assert kinds == {"async_npu", "async_task_queue", "fwdbwd", "HostToDevice", "MsTx"}
    launched = [e for e in events if e.get("cat") == "async_npu" and e["ph"] == "s"]
    assert len(launched) == 4


def test_overlap_analysis(tmp_path):
    events = read_trace(analysed(tmp_path) / "trace_view.json")
    spans = {
        name: sum(e["dur"] for e in events if e.get("cat") == "overlap" and e["name"] == name)
        for name in ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
    }
    assert spans == {
        "Computing": 480, "Communication": 200, "Communication(Not Overlapped)": 100, "Free": 140 + 570 + 140,
    }  # fmt: skip


def test_the_queue_is_there_unless_switched_off(tmp_path, monkeypatch):
    events = read_trace(analysed(tmp_path / "on") / "trace_view.json")
    queue = [e for e in events if e.get("cat") in ("enqueue", "dequeue")]
    assert {e["name"] for e in queue} == {
        "Enqueue@aclnnMatMulV2", "Enqueue@aclnnAdd", "Dequeue@aclnnMatMulV2", "Dequeue@aclnnAdd",
    }  # fmt: skip
    assert {e["args"]["correlation_id"] for e in queue} == {1, 2, 11, 12}
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "0")
    events = read_trace(analysed(tmp_path / "off") / "trace_view.json")
    assert not any(e.get("cat") in ("enqueue", "dequeue", "async_task_queue") for e in events)


def test_memory_is_counted(tmp_path):
    events = read_trace(analysed(tmp_path) / "trace_view.json")
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
    events = read_trace(analysed(tmp_path, data, mstx=True) / "trace_view.json")
    check_timeline(events)
    track = {e["name"]: e["tid"] for e in events if e.get("cat") == "mstx"}
    assert track["a"] == track["c"] != track["b"]


def test_operators_that_cross_are_cut(tmp_path):
    data = {"op": [op("outer", 0, 10), op("crossing", 5, 15), op("next", 12, 14)]}
    check_timeline(read_trace(analysed(tmp_path, data) / "trace_view.json"))


def check_timeline(events) -> None:
    """Durations are not negative, slices of a track nest, and each flow has one start before its end, on slices."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            start = int(event["ts"].replace(".", ""))
            tracks.setdefault((event["pid"], event["tid"]), []).append(
                (start, start + round(event["dur"] * 1000))
            )
    for spans in tracks.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
        open_: list[float] = []
        for start, end in spans:
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1] + 1, "slices overlap in part"
            open_.append(end)
    flows: dict[tuple[str, str], dict[str, int]] = {}
    for event in events:
        if event["ph"] in "sf":
            moment = int(event["ts"].replace(".", ""))
            key = (event["cat"], str(event["id"]))
            assert event["ph"] not in flows.setdefault(key, {}), f"{key} twice"
            flows[key][event["ph"]] = moment
            spans = tracks[event["pid"], event["tid"]]
            assert any(start <= moment <= end for start, end in spans), f"{key} is on no slice"
    for key, ends in flows.items():
        assert set(ends) == {"s", "f"} and ends["s"] <= ends["f"], key
