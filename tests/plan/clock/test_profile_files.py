"""A prediction as a profile that the usual readers open."""

import csv
import json

import pytest

from softnpu import chips
from softnpu.plan.clock import Topology, fitting, predict, profile_files
from softnpu.plan.tasks import Task, TensorSpec
from softnpu.report.data import Profile

CHIP = chips.get("Ascend910B3")


def spec(*shape, dtype="bfloat16"):
    return TensorSpec(shape, dtype)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    x, y = spec(4096, 4096), spec(4096, 4096)
    tasks = [
        Task("aten::mm", "kernel", 0, 0, (x, y), (x,)),
        Task("npu::npu_rms_norm", "kernel", 0, 0, (x, spec(4096)), (x,)),
        Task("hccl::all_reduce", "collective", 0, 7, (x,), (x,), waits=(0,), ranks=8),
        Task("copy", "copy", 0, 0, (x,), (x,), (("direction", "d2h"),), host_waits=True),
    ]
    prediction = predict(tasks, CHIP, Topology.of(CHIP, 8))
    path = profile_files.write(tmp_path_factory.mktemp("plan"), tasks, prediction, CHIP.name, rank=3)  # fmt: skip
    return path, tasks, prediction


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_kernels_have_predicted_times(written):
    path, _, prediction = written
    kernels = rows(path / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv")
    by_type = {row["Type"]: float(row["Duration(us)"]) for row in kernels}
    assert by_type["RmsNorm"] == pytest.approx(prediction.tasks[1].seconds * 1e6, abs=0.01)
    assert by_type["hcom_allReduce_"] == pytest.approx(prediction.tasks[2].seconds * 1e6, abs=0.01)


def test_it_says_that_it_is_predicted(written):
    path, _, prediction = written
    assert path.name.startswith("predicted-rank3_") and path.name.endswith("_ascend_pt")
    metadata = json.loads((path / "profiler_metadata.json").read_text())
    assert metadata["predicted"] is True and metadata["chip"] == CHIP.name
    assert metadata["step_seconds"] == prediction.seconds
    trace = (path / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text()
    assert profile_files.MARK in trace


def test_report_reads_it(written):
    path, tasks, prediction = written
    profile = Profile.read(path)
    assert {"RmsNorm", "allReduce"} <= {k["name"].removeprefix("hcom_").rstrip("_") for k in profile.kernels}  # fmt: skip
    (step,) = profile.steps
    exposed = float(step["Communication(Not Overlapped)"]) * 1e-6
    assert exposed == pytest.approx(prediction.exposed_communication_seconds, rel=0.3)
    assert profile.communications[0]["size"] > 0
    assert len(tasks) == len(prediction.tasks)


def test_calibrating_on_it_changes_nothing(written):
    report = fitting.calibrate(written[0], CHIP)
    fits = {f"{fit.kind}:{fit.name}": fit for fit in report.fits}
    assert fits["row:rmsnorm"].factor == pytest.approx(1.0, rel=0.01)
    assert next(fit for fit in report.fits if fit.kind == "cube").factor == pytest.approx(1, rel=0.01)  # fmt: skip
    assert fits["collective:all_reduce"].factor == pytest.approx(1.0, rel=0.01)


def test_the_timeline_has_the_events_of_a_chrome_trace(written):
    """What Perfetto's import of such traces reads: every slice with its place, begin and length, flows in pairs."""
    path, tasks, _ = written
    events = json.loads((path / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text("utf-8"))
    slices = [event for event in events if event["ph"] == "X"]
    for event in slices:
        assert event["name"] and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert float(event["ts"]) > 0 and float(event["dur"]) >= 0
    named = {event["name"] for event in events if event["ph"] == "M"}
    assert {"process_name", "thread_name"} <= named
    flows = {kind: {(e["id"], e["cat"]) for e in events if e["ph"] == kind} for kind in "sf"}
    assert flows["s"] == flows["f"]
    assert {event["ph"] for event in events} <= set("XMsf")
    assert len(slices) >= len(tasks)
