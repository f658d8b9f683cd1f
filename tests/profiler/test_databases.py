"""The databases of a profile whose numbers are known."""

from __future__ import annotations

from tests.profiler.support import MAIN, analyzed, query, rows, task

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
    out = analyzed(tmp_path, profiler_level="Level1", rank=2, sys_io=True, sys_interconnection=True)
    for file, tables in (("ascend_pytorch_profiler_2.db", TABLES), ("analysis.db", ANALYSIS)):
        for table, columns in tables.items():
            found = [row[1] for row in query(out / file, f"pragma table_info({table})")]
            assert found == columns.split(), table


def test_tables_are_linked(tmp_path):
    db = analyzed(tmp_path, profiler_level="Level1") / "ascend_pytorch_profiler.db"
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


def test_copies_have_the_type_that_readers_look_for(tmp_path):
    data = rows()
    data["task"].append(task("aten::copy_", 600, 620, 99))
    data.setdefault("kernel", []).append(["aten::copy_", "TensorMove", "SDMA_SQE"])
    db = analyzed(tmp_path, data, profiler_level="Level1") / "ascend_pytorch_profiler.db"
    types = query(
        db,
        "select distinct s.value, t.globalTaskId in (select globalTaskId from MEMCPY_INFO) from TASK t "
        "join STRING_IDS s on s.id = t.taskType order by 1",
    )
    assert ("MEMCPY_ASYNC", 1) in types
    assert all((kind == "MEMCPY_ASYNC") == bool(copies) for kind, copies in types)


def test_steps_of_analysis_db_are_microseconds(tmp_path):
    out = analyzed(tmp_path, profiler_level="Level1")
    assert query(out / "analysis.db", "select step, computing, free from StepTraceTime") == [
        ("3", 240, 470), ("4", 240, 470),
    ]  # fmt: skip


def test_attributes_of_operators(tmp_path):
    data = rows()
    for row in data["op"]:
        row.append("alpha:2" if row[0] == "aten::add" else "")
    out = analyzed(
        tmp_path, data, profiler_level="Level1", op_attr=True, export_type=["text", "db"]
    )
    found = query(
        out / "ascend_pytorch_profiler.db",
        "select distinct k.value, a.value from COMPUTE_TASK_INFO join STRING_IDS k on k.id = opType "
        "join STRING_IDS a on a.id = attrInfo",
    )
    assert sorted(found) == [("Add", "alpha:2"), ("MatMulV2", "N/A")]
