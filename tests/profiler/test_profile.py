"""torch_npu.profiler.profile and _KinetoProfile on real work."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time

import pytest
import torch

import torch_npu
import torch_npu.profiler as prof
from tests.profiler.support import (
    handler,
    header,
    names,
    outputs,
    query,
    read_csv,
    read_trace,
    run,
    train_step,
)
from torch_npu.profiler import ProfilerActivity, ProfilerLevel, _ExperimentalConfig, schedule

ALWAYS = {"analyse.done", "trace_view.json", "operator_details.csv", "ascend_pytorch_profiler.db"}
DEVICE = {"kernel_details.csv", "step_trace_time.csv", "task_time.csv", "analysis.db"}
MEMORY = {"memory_record.csv", "operator_memory.csv", "npu_module_mem.csv"}


@pytest.mark.parametrize(
    ("config", "options", "extra"),
    [
        ({}, {}, DEVICE),
        ({}, {"activities": [ProfilerActivity.CPU]}, set()),
        ({}, {"profile_memory": True}, DEVICE | MEMORY),
        ({"profiler_level": "Level1"}, {}, DEVICE | {"op_statistic.csv", "api_statistic.csv"}),
        ({"profiler_level": "Level2", "l2_cache": True}, {}, DEVICE | {
            "op_statistic.csv", "api_statistic.csv", "l2_cache.csv", "soc_pmu.csv"}),
        ({"sys_io": True, "sys_interconnection": True}, {}, DEVICE | {"nic.csv", "roce.csv", "hccs.csv", "pcie.csv"}),
    ],
)  # fmt: skip
def test_files_and_their_conditions(tmp_path, config, options, extra):
    run(tmp_path, config=config, **options)
    assert names(tmp_path) == ALWAYS | extra


def test_the_device_alone(tmp_path):
    run(tmp_path, activities=[ProfilerActivity.NPU])
    assert names(tmp_path) == DEVICE | ALWAYS - {"operator_details.csv"}


def test_databases_alone(tmp_path):
    run(tmp_path, config={"export_type": prof.ExportType.Db})
    assert names(tmp_path) == {"analyse.done", "ascend_pytorch_profiler.db", "analysis.db"}


def test_ai_cpu_operators_are_in_data_preprocess(tmp_path):
    with prof.profile(
        on_trace_ready=handler(tmp_path), experimental_config=_ExperimentalConfig(profiler_level="Level2")
    ):  # fmt: skip
        torch.ones(3, dtype=torch.float64, device="npu") + 1
    rows = read_csv(outputs(tmp_path) / "data_preprocess.csv")
    assert "Add" in {row["Node"] for row in rows}
    assert {row["Memcpy_time(us)"] for row in rows} == {"N/A"}


def test_level_none_has_marks_alone(tmp_path):
    with prof.profile(
        on_trace_ready=handler(tmp_path), experimental_config=_ExperimentalConfig(profiler_level="Level_none", mstx=True)
    ):  # fmt: skip
        torch.npu.mstx.mark("here")
        train_step()
    assert "kernel_details.csv" not in names(tmp_path)
    assert "here" in {event["name"] for event in read_trace(outputs(tmp_path) / "trace_view.json")}


def test_steps_are_ranges_and_columns(tmp_path):
    run(tmp_path, steps=4, schedule=schedule(wait=0, warmup=1, active=2, repeat=1, skip_first=1))
    out = outputs(tmp_path)
    rows = read_csv(out / "kernel_details.csv")
    assert {row["Step Id"] for row in rows} == {"2", "3"}
    assert [row["Step"] for row in read_csv(out / "step_trace_time.csv")] == ["2", "3"]
    assert all(float(row["Computing"]) > 0 for row in read_csv(out / "step_trace_time.csv"))
    assert query(out / "ascend_pytorch_profiler.db", "select id from STEP_TIME") == [(2,), (3,)]


def test_every_cycle_is_a_profile(tmp_path):
    run(tmp_path, steps=4, schedule=schedule(wait=1, warmup=0, active=1))
    assert len(list(tmp_path.glob("*_ascend_pt"))) == 2


def test_operators_launch_kernels(tmp_path):
    run(tmp_path, record_shapes=True, config={"profiler_level": "Level1"})
    kernels = read_csv(outputs(tmp_path) / "kernel_details.csv")
    product = next(row for row in kernels if row["Type"] == "MatMulV2")
    assert product["Input Shapes"] == '"8,8;8,8"' and product["Input Data Types"] == "FLOAT;FLOAT"
    assert product["Output Shapes"] == '"8,8"' and product["Input Formats"] == "ND;ND"
    assert product["Accelerator Core"] == "AI_CORE" and product["aic_mac_ratio"] == "N/A"
    operators = read_csv(outputs(tmp_path) / "operator_details.csv")
    mm = next(row for row in operators if row["Name"] == "aten::mm")
    assert mm["Input Shapes"] == "8,8;\r\n8,8"
    assert 0 < float(mm["Device Self Duration(us)"]) <= float(mm["Host Total Duration(us)"])
    assert "aten::resolve_conj" not in {row["Name"] for row in operators}  # the emulation's own


def test_stacks_and_modules(tmp_path):
    with prof.profile(on_trace_ready=handler(tmp_path), with_stack=True, with_modules=True):
        torch.nn.Linear(4, 4, device="npu")(torch.ones(2, 4, device="npu"))
    events = read_trace(outputs(tmp_path) / "trace_view.json")
    assert any(
        e["name"].startswith("nn.Module: Linear")
        for e in events
        if e.get("cat") == "python_function"
    )
    addmm = next(e for e in events if e["name"] == "aten::addmm")
    assert "nn.Module: Linear" in addmm["args"]["Call stack"]


def test_flops_are_in_the_trace(tmp_path):
    with prof.profile(on_trace_ready=handler(tmp_path), with_flops=True):
        torch.ones(2, 3, device="npu") @ torch.ones(3, 5, device="npu")
    events = read_trace(outputs(tmp_path) / "trace_view.json")
    assert next(e for e in events if e["name"] == "aten::mm")["args"]["flops"] == 2 * 2 * 3 * 5


def test_memory_of_operators(tmp_path):
    with prof.profile(on_trace_ready=handler(tmp_path), profile_memory=True):
        kept = torch.empty(3000, device="npu")
        (kept + 1).sum()
    rows = read_csv(outputs(tmp_path) / "operator_memory.csv")
    first = next(row for row in rows if row["Name"] == "aten::empty")
    assert float(first["Size(KB)"]) == 12288 / 1024 and first["Release Time(us)"] == ""
    add = next(row for row in rows if row["Name"] == "aten::add")
    assert float(add["Duration(us)"]) >= 0 and add["Device Type"] == "NPU:0"
    records = read_csv(outputs(tmp_path) / "memory_record.csv")
    assert {row["Component"] for row in records} == {"APP", "PTA", "PTA+GE"}
    last = [row for row in records if row["Component"] == "PTA"][-1]
    assert float(last["Total Reserved(MB)"]) * 2**20 == torch.npu.memory_reserved()


def test_metadata_and_trace_id(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HCCL_ALGO", "ring")
    with prof.profile(
        on_trace_ready=handler(tmp_path), custom_trace_id_callback=lambda: "run-7"
    ) as profiler:
        profiler.add_metadata("author", "me")
        profiler.add_metadata_json("sizes", json.dumps({"tp": 2}))
        profiler.add_metadata_json("broken", "{")
        profiler.add_metadata("long", "x" * 5000)
        profiler.add_metadata(1, "x")
        assert profiler.get_trace_id() == "run-7"
        train_step()
    (profile,) = tmp_path.glob("*_ascend_pt")
    metadata = json.loads((profile / "profiler_metadata.json").read_text("utf-8"))
    assert (
        metadata["author"] == "me"
        and metadata["sizes"] == {"tp": 2}
        and metadata["trace_id"] == "run-7"
    )
    assert metadata["ENV_VARIABLES"]["HCCL_ALGO"] == "ring" and "broken" not in metadata
    said = capsys.readouterr().out
    assert "not JSON" in said and "4096 characters" in said and "must be str" in said
    stored = dict(
        query(
            profile / "ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler.db", "select * from META_DATA"
        )
    )
    assert stored["author"] == '"me"' and stored["SCHEMA_VERSION"]


@pytest.mark.parametrize("callback", [lambda: 5, lambda: "x" * 2000, "no function"])
def test_a_wrong_trace_id_is_replaced(tmp_path, capsys, callback):
    profiler = prof.profile(on_trace_ready=handler(tmp_path))
    profiler.set_custom_trace_id_callback(callback)
    profiler.start()
    profiler.stop()
    assert len(profiler.get_trace_id()) == 32
    assert "custom_trace_id_callback" in capsys.readouterr().out


def test_info_describes_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    run(tmp_path, record_shapes=True, schedule=schedule(wait=0, active=1, repeat=1))
    (profile,) = tmp_path.glob("*_ascend_pt")
    info = json.loads((profile / "profiler_info_3.json").read_text("utf-8"))
    assert info["rank_id"] == 3 and info["torch_npu_version"] == torch_npu.__version__
    common = info["config"]["common_config"]
    assert common["activities"] == ["ProfilerActivity.CPU", "ProfilerActivity.NPU"]
    assert common["record_shapes"] is True and common["schedule"]["active"] == 1
    assert info["config"]["experimental_config"]["_profiler_level"] == "Level0"
    assert info["end_info"]["collectionTimeEnd"] > info["start_info"]["start_time"]
    assert (outputs(tmp_path) / "ascend_pytorch_profiler_3.db").exists()


def test_names_of_the_directory(tmp_path, monkeypatch, capsys):
    run(tmp_path / "a")
    prof.profile(on_trace_ready=handler(tmp_path / "b", worker_name="me")).__enter__().stop()
    assert next((tmp_path / "b").iterdir()).name.startswith(f"me_{os.getpid()}_")
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path / "work"))
    profiler = prof.profile()
    profiler.start()
    profiler.stop()
    del profiler
    assert len(list((tmp_path / "work/profiling_data").glob("*_ascend_pt/FRAMEWORK"))) == 1
    handler(tmp_path, worker_name=3)
    prof.tensorboard_trace_handler(5)
    handler(tmp_path, analyse_flag=1, async_mode="x")
    said = capsys.readouterr().out
    for name in ("worker_name", "dir_name", "analyse_flag", "async_mode"):
        assert f"Invalid parameter {name}" in said


def test_without_a_handler_the_profile_is_temporary(tmp_path):
    profiler = prof.profile()
    with profiler:
        train_step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert "aten::mm" in {event["name"] for event in read_trace(tmp_path / "trace.json")}
    del profiler
    gc.collect()
    assert {path.name for path in tmp_path.iterdir()} == {"trace.json"}


def test_raw_data_can_wait(tmp_path):
    with prof.profile(on_trace_ready=handler(tmp_path, analyse_flag=False)):
        train_step()
    assert not outputs(tmp_path).exists()
    prof.profiler.analyse(str(tmp_path))
    assert "aten::mm" in {
        row["Name"] for row in read_csv(outputs(tmp_path) / "operator_details.csv")
    }


def test_kineto_profile(tmp_path):
    profiler = prof._KinetoProfile(record_shapes=True, experimental_config=_ExperimentalConfig())
    profiler.start()
    train_step()
    profiler.stop()
    profiler.export_chrome_trace(str(tmp_path / "one.json"))
    mm = next(e for e in read_trace(tmp_path / "one.json") if e["name"] == "aten::mm")
    assert (
        mm["args"]["Input Dims"] == "8,8;\r\n8,8" and mm["args"]["Input type"] == "float;\r\nfloat"
    )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"activities": ["CPU"]}, "activities"),
        ({"record_shapes": 1}, "record_shapes"),
        ({"profile_memory": "x"}, "profile_memory"),
        ({"with_stack": 0}, "with_stack"),
        ({"with_flops": None}, "with_flops"),
        ({"with_modules": []}, "with_modules"),
        ({"experimental_config": {}}, "experimental_config"),
        ({"schedule": 3}, "schedule"),
        ({"on_trace_ready": 3}, "on_trace_ready"),
        ({"use_cuda": True}, "use_cuda"),
    ],
)
def test_a_wrong_argument_is_the_default_with_a_warning(capsys, options, name):
    profiler = prof.profile(**options)
    assert "[WARNING]" in (said := capsys.readouterr().out) and name in said
    assert profiler.prof_if.activities == prof.supported_activities()
    assert profiler.prof_if.record_shapes is False


def test_misuse_is_told_and_not_raised(tmp_path, capsys):
    profiler = prof.profile(on_trace_ready=handler(tmp_path))
    profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "x.json"))
    profiler.export_stacks(str(tmp_path / "x.log"))
    profiler.export_memory_timeline(str(tmp_path / "x.html"))
    with profiler:
        profiler.export_chrome_trace(str(tmp_path))
        other = prof.profile(on_trace_ready=handler(tmp_path))
        other.start()
    said = capsys.readouterr().out
    for part in ("step has no effect", "was not started", "needs with_stack=True", "needs record_shapes=True",
                 "is a directory", "being profiled already"):  # fmt: skip
        assert part in said, part


def test_an_exception_in_the_region_keeps_the_data(tmp_path):
    with pytest.raises(ZeroDivisionError), prof.profile(on_trace_ready=handler(tmp_path)):
        train_step()
        raise ZeroDivisionError
    assert "kernel_details.csv" in names(tmp_path)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_directory_that_somebody_removes(tmp_path, monkeypatch, capsys):
    """The thread that writes tasks says so in a line, and the program goes on."""
    monkeypatch.setattr("torch_npu.profiler._sources._FLUSH", 0.01)
    handler = prof.tensorboard_trace_handler(str(tmp_path))
    with prof.profile(on_trace_ready=handler):
        shutil.rmtree(tmp_path)
        said = ""
        end = time.monotonic() + 30
        while "Tasks of the device are not written any more" not in said:
            assert time.monotonic() < end, said
            torch.ones(3, device="npu").add_(1)
            time.sleep(0.01)
            said += capsys.readouterr().out
    assert torch.ones(3, device="npu").sum().item() == 3


def test_counters_have_columns_for_every_metric(tmp_path):
    for number, metrics in enumerate(sorted(prof.supported_ai_core_metrics())):
        directory = tmp_path / str(number)
        run(directory, config={"profiler_level": ProfilerLevel.Level1, "aic_metrics": metrics})
        columns = header(outputs(directory) / "kernel_details.csv")
        extra = columns[columns.index("Context ID") + 1 :]
        assert bool(extra) == (metrics != prof.AiCMetrics.AiCoreNone)
        row = read_csv(outputs(directory) / "kernel_details.csv")[0]
        assert {row[name] for name in extra} <= {"N/A"}
