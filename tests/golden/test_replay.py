"""Replay: the numbers of a comparison, the statuses, the table, the page, the exit code."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import torch_npu
from softnpu import cli, golden
from softnpu.golden import Tolerance, _page, compare


def test_errors_against_numpy():
    generator = torch.Generator().manual_seed(0)
    b = torch.randn(5, 7, generator=generator)
    a = b + torch.randn(5, 7, generator=generator) * 1e-3
    found = compare(a, b, Tolerance(rtol=1e-3, atol=1e-4))
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    error = np.abs(x - y)
    assert found.max_abs == error.max()
    assert found.max_rel == pytest.approx((error / np.abs(y)).max(), rel=1e-12)
    assert found.share == (error > 1e-4 + 1e-3 * np.abs(y)).mean()
    assert found.cosine == pytest.approx(
        (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()), rel=1e-12
    )
    where = np.unravel_index(error.argmax(), error.shape)
    assert found.worst[0]["index"] == list(where) and found.worst[0]["golden"] == b[where].item()
    assert not found.bitwise and len(found.worst) == 8


def ulps(a: float, b: float) -> int:
    """Between two float32, by their bits."""

    def ordered(x: float) -> int:
        (bits,) = struct.unpack("<i", struct.pack("<f", x))
        return bits if bits >= 0 else -(bits & 0x7FFFFFFF)

    return abs(ordered(a) - ordered(b))


@pytest.mark.parametrize(
    "a,b", [(1.0, 1.0000001), (-1e-45, 1e-45), (0.0, -0.0), (3.0, -2.0), (1e30, 1e-30)]
)
def test_ulps_in_fp32(a, b):
    found = compare(torch.tensor([a]), torch.tensor([b]))
    assert found.max_ulp == ulps(a, b)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn]
)
def test_a_neighbor_is_one_ulp_away(dtype):
    one = torch.ones(1, dtype=dtype)
    integers = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[one.element_size()]
    following = (one.view(integers) + 1).view(dtype)
    assert compare(following, one).max_ulp == 1


def test_nan_and_inf_positions():
    nan, inf = math.nan, math.inf
    b = torch.tensor([[1.0, nan, inf], [inf, -inf, 2.0]])
    a = torch.tensor([[1.0, nan, inf], [-inf, 1.0, nan]])
    found = compare(a, b)
    assert (found.nan, found.nan_at) == (1, [[1, 2]])
    assert (found.inf, found.inf_at) == (2, [[1, 0], [1, 1]])
    assert not found.within and found.share == 0.5 and found.max_abs == 0
    json.dumps(found.as_json(), allow_nan=False)
    assert compare(b, b.clone()).bitwise


def test_integers_must_be_equal_and_dtypes_may_differ():
    assert not compare(torch.tensor([1, 2]), torch.tensor([1, 3])).within
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 3])).share == 0.5
    x = torch.linspace(1, 2, 100)
    found = compare(x.bfloat16(), x)
    assert (
        found.within
        and not found.bitwise
        and found.dtype == "float32 (here bfloat16)"
        and found.max_ulp == 0
    )
    shapes = compare(torch.ones(2), torch.ones(3))
    assert not shapes.within and "shape (2,) here, (3,) recorded" in shapes.mismatch


@pytest.mark.parametrize(
    "dtype,limit", [(torch.float32, 1e-4), (torch.float16, 1e-3), (torch.bfloat16, 4e-3)]
)
def test_default_tolerance(dtype, limit):
    """One thousandth of the elements may be beyond one thousandth, in fp16; and so on."""
    b = torch.ones(10_000, dtype=dtype)
    a = b.clone()
    allowed = int(10_000 * limit)
    a[:allowed] = 2
    assert compare(a, b).within
    a[: allowed + 1] = 2
    assert not compare(a, b).within


@pytest.fixture
def recording(tmp_path):
    torch.manual_seed(0)
    with golden.record(tmp_path / "r"):
        torch_npu.npu_swiglu(torch.randn(4, 64, device="npu"))
        torch_npu.npu_rms_norm(torch.randn(4, 64, device="npu"), torch.ones(64, device="npu"))
        torch.ops.npu.npu_dtype_cast(torch.ones(2, device="npu"), torch.float16)
    return tmp_path / "r"


def change(recording, number: int, **changes) -> None:
    index = json.loads((recording / "index.json").read_text())
    index["calls"][number].update(changes)
    (recording / "index.json").write_text(json.dumps(index))


def replay(*arguments: object, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(
        cli.main, ["golden", "replay", *map(str, arguments)]
    )
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_the_same_bits(recording):
    assert "3 same" in replay(recording)
    assert replay(recording, "--all").count("npu::npu_rms_norm") == 2


def test_a_difference_beyond_and_within_tolerance(recording, tmp_path, monkeypatch):
    """Replayed on the CPU kernel of another epsilon: an error in every element."""
    index = json.loads((recording / "index.json").read_text())
    call = index["calls"][1]
    call["kwargs"]["epsilon"] = 0.01
    call["args"] = call["args"][:2]
    (recording / "index.json").write_text(json.dumps(index))
    page = tmp_path / "page.html"
    found = json.loads(replay(recording, "--json", "--html", page, code=1))
    assert found["counts"]["beyond"] == 1 and found["counts"]["same"] == 2
    (wrong,) = [c for c in found["calls"] if c["status"] == "beyond"]
    assert wrong["name"] == "npu::npu_rms_norm" and wrong["outputs"][0]["share"] > 0.9
    assert 0.001 < wrong["outputs"][0]["max_rel"] < 0.02
    text = page.read_text("utf-8")
    assert text.count("<section>") == 2, "both outputs are drawn"
    assert (
        "<circle" in text
        and "<rect" in text
        and str(wrong["outputs"][0]["worst"][0]["index"]) in text
    )
    assert "1 within" in replay(recording, "--rtol", "0.1", "--atol", "0.1")
    assert "1 beyond" in replay(recording, "--rtol", "0.1", "--atol", "0.1", "--bitwise", code=1)
    assert "1 within" in replay(recording, "--share", "1")


def test_missing_failed_and_random(recording, tmp_path):
    change(recording, 0, op="npu::npu_of_tomorrow")
    change(recording, 1, args=[])
    said = replay(recording, code=1)
    assert (
        "1 missing" in said
        and "1 failed" in said
        and "there is no operator npu::npu_of_tomorrow" in said
    )
    assert "1 same" in replay(recording, "--ops", "npu_dtype_cast")
    with golden.record(tmp_path / "random", ops="*"):
        torch.rand(4, device="npu")
        torch.nn.functional.dropout(torch.ones(64, device="npu"), 0.5)
    assert {r.status for r in golden.replay(tmp_path / "random")} == {"same"}
    index = json.loads((tmp_path / "random" / "index.json").read_text())
    index["made_by"]["emulated"] = False
    (tmp_path / "random" / "index.json").write_text(json.dumps(index))
    assert "random" in replay(tmp_path / "random")


def test_names_cannot_break_the_page(recording):
    change(recording, 0, source={"file": "<script>", "line": 1, "function": "f", "text": "<b>&"})
    results = golden.replay(recording, picture=True)
    results[0].outputs[0] = ("<i>", compare(torch.ones(3), torch.zeros(3), picture=True))
    text = _page.render("<recording>", results)
    assert (
        "&lt;recording&gt;" in text
        and "<script>" not in text
        and "<i>" not in text
        and "<b>" not in text
    )


def test_ranks_of_a_job(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with golden.record(tmp_path / "job"):
            torch_npu.npu_swiglu(torch.full((2, 8), float(rank), device="npu"))
    assert {r.process for r in golden.replay(tmp_path / "job")} == {"rank0", "rank1"}


def test_the_cpu_can_replay_aten(tmp_path):
    with golden.record(tmp_path / "r", ops="aten::mm"):
        torch.ones(3, 3, device="npu") @ torch.ones(3, 3, device="npu")
    assert "1 same" in replay(tmp_path / "r", "--device", "cpu")


def test_record_and_replay_a_program(tmp_path):
    (tmp_path / "prog.py").write_text(
        "import sys, torch, torch_npu\n"
        "torch_npu.npu_swiglu(torch.ones(int(sys.argv[1]), 8, device='npu'))\n"
    )  # fmt: skip
    output = tmp_path / "out"
    command = ["golden", "record", "-o", str(output), str(tmp_path / "prog.py"), "3"]
    done = CliRunner().invoke(cli.main, command)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "1 same" in replay(output)
    done = CliRunner().invoke(cli.main, command)
    assert done.exit_code == 1 and "--resume" in done.output
