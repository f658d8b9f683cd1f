"""`softnpu plan prog.py` on a small training: what can be counted by hand must come out."""

from __future__ import annotations

import json

import pytest

from tests.plan.programs import LAYERS, ROWS, STEPS, TRAIN, WIDTH, line_of, plan

WEIGHT = 4 * WIDTH * WIDTH
ACTIVATION = 4 * ROWS * WIDTH


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plan")
    files = ("--page", str(directory / "plan.html"), "--profile", str(directory / "profile"))
    found, done = plan(directory, TRAIN, "--lr", "1", options=(*files, "--soc", "Ascend910B1"))
    return directory, found, done


@pytest.fixture(scope="module")
def rank(trained):
    (job,) = trained[1]["jobs"]
    (one,) = job["by_rank"]
    return one


def test_output_and_arguments_pass_through(trained):
    _, found, done = trained
    assert done.stdout.startswith("arguments ['--lr', '1']\n")
    assert "fits in 64.00 GiB" in done.stderr and "predicted step" in done.stderr
    assert found["soc"] == "Ascend910B1" and found["fits"] is True


def test_peak_is_the_allocators(trained, rank):
    """The program prints what torch.npu counts."""
    allocated, reserved = map(int, trained[2].stdout.split("peak ")[1].split())
    assert (rank["peak_allocated_bytes"], rank["peak_reserved_bytes"]) == (allocated, reserved)
    assert sum(rank["by_kind"].values()) == reserved
    assert trained[1]["peak_allocated_bytes"] == allocated


def test_kinds(rank):
    kinds = rank["by_kind"]
    assert kinds["parameters"] == 2 * LAYERS * WEIGHT
    assert kinds["optimizer state"] == 2 * 2 * LAYERS * WEIGHT
    # the input of each product: the model's, those of the other layers, results of relu; and the loss
    assert 0 <= kinds["activations"] - 2 * LAYERS * ACTIVATION <= 1024
    assert kinds["communication"] == 0 and kinds["other"] == 0


def test_line_that_holds_the_most(rank):
    top = rank["lines"][0]
    assert top["line"] == line_of(TRAIN, "the line that holds activations")
    assert top["file"].endswith("program.py") and top["function"] == "forward"
    assert set(top["by_kind"]) == {"activations"}


def test_curve(rank):
    totals = [sum(point["bytes"].values()) for point in rank["curve"]]
    assert max(totals) == rank["peak_allocated_bytes"] and min(totals) < max(totals)


def test_advice_is_computed(rank):
    found = {one["name"]: one for one in rank["advice"]}
    assert found["batch"]["saves_bytes"] <= rank["by_kind"]["activations"] // 2
    assert found["recompute"]["saves_bytes"] > ACTIVATION
    for one in found.values():
        if one["name"] != "expandable segments":
            assert one["peak_allocated_bytes"] + one["saves_bytes"] == rank["peak_allocated_bytes"]


def test_step_and_kernels(rank):
    assert rank["step"]["kind"] == "optimizer" and rank["step"]["complete"] == STEPS
    assert rank["step_seconds"] > 0 and 0 < rank["mfu"] < 1
    products = [kernel for kernel in rank["kernels"] if kernel["name"] == "aten::mm"]
    # two products a layer forward, two for each of them backward, but the first input has no gradient
    assert len(products) == LAYERS * 2 * 3 - 1
    first = products[0]
    assert [i["shape"] for i in first["inputs"]] == [[ROWS, WIDTH], [WIDTH, WIDTH]]
    assert first["inputs"][0]["dtype"] == "float32" and first["phase"] == "forward"
    assert first["seconds"] > 0 and first["bound"] and first["stream"] == 0
    assert {kernel["phase"] for kernel in rank["kernels"]} == {"forward", "backward", "optimizer"}


def test_page_and_profile(trained):
    text = (trained[0] / "plan.html").read_text("utf-8")
    assert "Memory over a step" in text and "<path" in text and "program.py:" in text
    (profile,) = (trained[0] / "profile").iterdir()
    assert profile.name.startswith("predicted")
    metadata = json.loads((profile / "profiler_metadata.json").read_text("utf-8"))
    assert metadata["predicted"] is True and metadata["chip"] == "Ascend910B1"


def test_what_recomputation_saves_is_what_it_saves(tmp_path, rank):
    """The program that does what the report proposes has the peak that the report foretells."""
    found, _ = plan(tmp_path, TRAIN, "recompute", options=("--soc", "Ascend910B1"))
    foretold = next(one for one in rank["advice"] if one["name"] == "recompute")
    assert found["peak_allocated_bytes"] == pytest.approx(
        foretold["peak_allocated_bytes"], rel=0.03
    )
    assert found["peak_allocated_bytes"] < 0.9 * rank["peak_allocated_bytes"]


COMPILED = """
import torch
import torch_npu
import torchair

model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
model = model.npu().bfloat16()
x = torch.empty(64, 512, device="npu", dtype=torch.bfloat16)
with torch.no_grad():
    for backend in (torchair.get_npu_backend(), "inductor"):
        torch._dynamo.reset()
        torch.compile(model, backend=backend)(x)
"""


def test_compiled_graphs_count_their_nodes(tmp_path):
    found, done = plan(tmp_path, COMPILED)
    (rank,) = found["jobs"][0]["by_rank"]
    products = [k for k in rank["kernels"] if k["name"] in ("aten::addmm", "aten::mm")]
    assert len(products) == 4
    assert rank["flops"] == 4 * 2 * 64 * 512 * 1024
    assert "compiled graphs" not in done.stderr
