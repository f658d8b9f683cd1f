"""The examples do what they say; tests/npu, tests/contrib and tests/torchair run those of their areas."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples import custom_operator, demo, mixed_precision, profiling, quick_start, serving


def test_serving_with_a_graph_generates_what_eager_generates():
    answers = []
    for graphed in (False, True):
        batch = serving.requests()
        server = serving.Server(graphed)
        server.serve(batch)
        assert len(server.free) == serving.BLOCKS - 1, "every block is free again"
        answers.append([request.tokens for request in batch])
    assert answers[0] == answers[1]
    assert [len(tokens) for tokens in answers[0]] == [6 + 5 * i for i in range(7)]


def test_mixed_precision_learns_and_leaves_out_the_step_that_overflows():
    losses, scales = mixed_precision.train(torch.float16)
    assert losses[-1] < losses[0] / 2
    at = mixed_precision.OVERFLOWS_AT
    assert scales[at] == scales[at - 1] / 2
    assert losses[at + 1] == losses[at], "the weights did not change"
    losses, scales = mixed_precision.train(torch.bfloat16)
    assert losses[-1] < losses[0] / 2 and set(scales) == {1.0}


def test_custom_operator(capsys):
    custom_operator.main()
    assert "opcheck and gradcheck agree" in capsys.readouterr().out


def test_profiling_finds_the_products(tmp_path):
    output = profiling.train(tmp_path)
    assert (output / "trace_view.json").exists()
    names = " ".join(name for name, _ in profiling.slowest(output, count=100))
    assert "MatMul" in names, names


def test_quick_start_learns_the_same_on_both_devices():
    weights = quick_start.Llama().state_dict()
    npu, cpu = (demo.train(device, weights, steps=4) for device in ("npu", "cpu"))
    assert npu.losses[-1] < npu.losses[0]
    torch.testing.assert_close(npu.losses, cpu.losses, rtol=0.01, atol=0.01)


def test_moe_learns_on_two_ranks_and_the_fused_operators_agree():
    program = Path(profiling.__file__).parent / "moe_torchrun.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(program), "--steps=8"],
        cwd=program.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < 0.7 * losses[0]
    assert float(re.search(r"differ .* by ([\d.]+)", done.stdout)[1]) < 0.01
    assert "FutureWarning" not in done.stderr


@pytest.mark.slow
def test_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["demo", str(tmp_path)])
    demo.main()
    said = capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 10_000
    (trace,) = tmp_path.glob("*_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json")
    assert str(trace) in said
    for row in ("loss, step", "training, ms a step", "TorchAir", "NPUGraph", "peak memory"):
        assert row in said


def test_the_list_of_examples_is_complete():
    folder = Path(profiling.__file__).parent
    text = (folder / "README.md").read_text("utf-8")
    for file in [*folder.glob("*.py"), *folder.glob("ci/*.yml")]:
        if file.name != "__init__.py":
            assert f"({file.relative_to(folder)})" in text, file.name
