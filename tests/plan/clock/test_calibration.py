"""Calibration: a profile that is made from known efficiencies gives them back."""

import csv
import json
import random

import pytest

from softnpu import chips
from softnpu.plan.clock import Calibration, ClockError, Topology, fitting, kernels, predict
from softnpu.plan.clock.constants import DEFAULT
from softnpu.plan.tasks import Task, TensorSpec

CHIP = chips.get("Ascend910B2")
COLUMNS = (
    "Device_id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
)  # fmt: skip
NAMES = {"bfloat16": "DT_BF16", "float32": "FLOAT"}


def spec(*shape, dtype="bfloat16"):
    return TensorSpec(shape, dtype)


def products(count):
    sizes = random.Random(0)
    for _ in range(count):
        m, k, n = (sizes.choice((256, 512, 1024, 4096)) for _ in range(3))
        yield Task("MatMulV3", "kernel", 0, 0, (spec(m, k), spec(k, n)), (spec(m, n),))


def norms(count):
    for i in range(1, count + 1):
        x = spec(256 * i, 4096)
        yield Task("RmsNorm", "kernel", 0, 0, (x, spec(4096)), (x, spec(256 * i, 1, dtype="float32")))  # fmt: skip


def attentions():
    for s in (512, 1024, 4096):
        x, sums = spec(2, 8, s, 128), spec(2, 8, s, 8, dtype="float32")
        layout = (("head_num", 8), ("input_layout", "BNSD"))
        yield Task("FlashAttentionScore", "kernel", 0, 0, (x, x, x), (sums, sums, x), layout)


def row(task, seconds):
    def side(specs):
        shapes = ";".join(",".join(map(str, one.shape)) for one in specs)
        return [f'"{shapes}"', ";".join(NAMES[one.dtype] for one in specs), ";".join("ND" for _ in specs)]  # fmt: skip

    times = ["0\t", f"{seconds * 1e6:.3f}", "0"]
    return [0, "aclnn_" + task.name, task.name, "AI_CORE", *times, *side(task.inputs), *side(task.outputs)]  # fmt: skip


def alone(task):
    cost = kernels.cost(task, CHIP, Topology.of(CHIP), DEFAULT)
    return cost.seconds * DEFAULT.in_step


def write_table(directory, rows):
    with open(directory / "kernel_details.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


@pytest.fixture
def profile(tmp_path):
    """Products at 1.5, norms at 0.7, attention at 2 times what the clock says, with 5% of noise."""
    noise = random.Random(1)
    rows = [row(t, 1.5 * alone(t) * noise.uniform(0.95, 1.05)) for t in products(40)]
    rows += [row(t, 0.7 * alone(t) * noise.uniform(0.95, 1.05)) for t in norms(20)]
    rows += [row(t, 2.0 * alone(t)) for t in attentions()]
    rows.append([0, "hcom_allReduce_", "hcom_allReduce_", "COMMUNICATION", "0", "100", "0", *["N/A"] * 6])  # fmt: skip
    write_table(tmp_path, rows)
    return tmp_path


def test_known_efficiencies_come_back(profile):
    report = fitting.calibrate(profile, CHIP)
    fits = {fit.name: fit for fit in report.fits}
    assert fits["matmulv3"].factor == pytest.approx(1.5, rel=0.02)
    assert fits["rmsnorm"].factor == pytest.approx(0.7, rel=0.02)
    assert fits["flashattentionscore"].factor == pytest.approx(2.0, rel=0.001)
    assert {name: fit.count for name, fit in fits.items()} == {
        "matmulv3": 40,
        "rmsnorm": 20,
        "flashattentionscore": 3,
    }
    assert fits["matmulv3"].before == pytest.approx(1 - 1 / 1.5, abs=0.03)
    assert fits["matmulv3"].after < 0.04
    assert fits["matmulv3"].worst < 0.08


def test_report_says_how_well_it_fits(profile):
    lines = fitting.calibrate(profile, CHIP).lines()
    assert "63 kernels and collectives of 3 types" in lines[0]
    (line,) = [line for line in lines if line.startswith("cube:matmulv3 ")]
    assert line.split()[1] == "40" and float(line.split()[2]) == pytest.approx(1.5, rel=0.02)


def test_later_plans_take_it(profile, tmp_path):
    file = tmp_path / "calibration.json"
    fitting.calibrate(profile, CHIP).calibration.write(file)
    calibration = Calibration.read(file)
    norm = Task("npu::npu_rms_norm", "kernel", 0, 0, (spec(512, 4096),), (spec(512, 4096),))
    mm = Task("aten::mm", "kernel", 0, 0, (spec(512, 512), spec(512, 512)), (spec(512, 512),))
    plain = predict([norm, mm], CHIP)
    found = predict([norm, mm], CHIP, calibration=calibration)
    ratios = [b.seconds / a.seconds for a, b in zip(plain.tasks, found.tasks)]
    # `aten::mm` is not in the profile under its name: the class of products counts.
    assert ratios == pytest.approx([0.7, 1.5], rel=0.02)


def test_weights_in_fractal_nz(tmp_path):
    task = Task("MatMulV2", "kernel", 0, 0, (spec(16, 512), spec(512, 1024)), (spec(16, 1024),))
    cells = row(task, alone(task))
    shapes, formats = COLUMNS.index("Input Shapes"), COLUMNS.index("Input Formats")
    cells[shapes], cells[formats] = '"16,512;64,32,16,16"', "ND;FRACTAL_NZ"
    write_table(tmp_path, [cells])
    (fit,) = fitting.calibrate(tmp_path, CHIP).fits
    assert fit.factor == pytest.approx(1.0, rel=0.001)


@pytest.mark.parametrize(("operation", "kind", "passes"), [("allGather", "all_gather", 1), ("allReduce", "all_reduce", 2)])  # fmt: skip
def test_collectives(tmp_path, operation, kind, passes):
    """Eight ranks, 64 MiB, in twice the time that the clock says; waiting for the others does not count."""
    name = "npu_world"
    size = 2**26
    task = Task(f"hccl::{kind}", "collective", 0, 0, (spec(size // 2),), (spec(size // 2),), ranks=8)  # fmt: skip
    cost = kernels.cost(task, CHIP, Topology.of(CHIP, 8), DEFAULT).seconds * DEFAULT.in_step
    from torch_npu.profiler._events import group_id

    moved = {"Transit Size(MB)": passes * size * 7 / 8 / 1e6, "Transit Time(ms)": 1.0}
    entry = {
        "Communication Time Info": {"Elapse Time(ms)": 2e3 * cost + 5, "Wait Time(ms)": 5.0},
        "Communication Bandwidth Info": {"SDMA": moved, "HCCS": moved, "RDMA": {}},
    }
    steps = {"step0": {"p2p": {}, "collective": {f"hcom_{operation}__123_0_1@{group_id(name)}": entry, "Total Op Info": entry}}}  # fmt: skip
    (tmp_path / "communication.json").write_text(json.dumps(steps))
    groups = {name: {"group_name": "default_group", "global_ranks": list(range(8))}}
    (tmp_path / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": groups}))
    (fit,) = fitting.calibrate(tmp_path, CHIP).fits
    assert (fit.kind, fit.name, fit.count) == ("collective", kind, 1)
    assert fit.factor == pytest.approx(2.0, rel=0.001)


def test_directory_without_a_profile(tmp_path):
    with pytest.raises(ClockError, match="no kernel_details.csv and no communication.json"):
        fitting.calibrate(tmp_path, CHIP)


def test_profile_without_shapes(tmp_path):
    task = next(products(1))
    cells = row(task, 1e-3)
    cells[7:] = ["N/A"] * 6
    write_table(tmp_path, [cells])
    with pytest.raises(ClockError, match="Level1 or Level2"):
        fitting.calibrate(tmp_path, CHIP)


def test_file_that_is_no_calibration(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(ClockError, match="is not a calibration"):
        Calibration.read(file)
    file.write_text('{"version": 9, "chip": "x", "names": {}, "classes": {}}')
    with pytest.raises(ClockError, match="version 9"):
        Calibration.read(file)


GOOD = {"version": 1, "chip": CHIP.name, "names": {}, "classes": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[1]",
        '"x"',
        "\x00",
        json.dumps(GOOD | {"names": 3}),
        json.dumps(GOOD | {"names": {"matmul:mm": "x"}}),
        json.dumps(GOOD | {"names": {"matmul:mm": -1.0}}),
        json.dumps(GOOD | {"classes": {"matmul": float("nan")}}),
        json.dumps(GOOD | {"classes": {"matmul": float("inf")}}),
        json.dumps(GOOD | {"classes": {"matmul": True}}),
    ],
)
def test_what_is_no_calibration(tmp_path, text):
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(ClockError, match="card.json is not a calibration that softnpu wrote"):
        Calibration.read(path)


ROW = ["0", "mm", "MatMulV3", "AI_CORE", "1", "9.5", "0", '"8,8;8,8"', "DT_BF16;DT_BF16", "ND;ND", '"8,8"', "DT_BF16", "ND"]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value"), [(5, "x"), (5, "nan"), (5, "inf"), (5, ""), (7, '"a,b"')]
)
def test_rows_that_no_profiler_writes(tmp_path, place, value):
    cells = [*ROW[:place], value, *ROW[place + 1 :]]
    with (tmp_path / "kernel_details.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, cells])
    with pytest.raises(
        ClockError, match="kernel_details.csv is not as a profiler writes it|has shapes"
    ):
        fitting.calibrate(tmp_path, CHIP)


def test_columns_that_are_missing(tmp_path):
    for name in ("Type", "Duration(us)", "Input Data Types", "Output Formats"):
        columns = [column for column in COLUMNS if column != name]
        (tmp_path / "kernel_details.csv").write_text(",".join(columns) + "\n")
        with pytest.raises(ClockError, match="kernel_details.csv has no column"):
            fitting.calibrate(tmp_path, CHIP)


@pytest.mark.parametrize(
    "text", ["[", "[" * 100_000, "[]", '{"step": 3}', '{"step": {"collective": {"hcom_allReduce__1": {}}}}']
)  # fmt: skip
def test_communication_that_no_profiler_writes(tmp_path, text):
    (tmp_path / "communication.json").write_text(text)
    with pytest.raises(ClockError, match="communication.json is not"):
        fitting.calibrate(tmp_path, CHIP)
