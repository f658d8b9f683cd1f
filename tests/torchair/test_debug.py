"""What a compilation shows of itself: eager runs, dumps, summaries, passes, patterns, logs."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import torch_npu
import torchair
from tests import PYTHONPATH
from tests.torchair.support import randn
from torchair import patterns
from torchair.core.utils import EVENT_LEVEL, logger

pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.fixture
def config():
    return torchair.CompilerConfig()


@pytest.fixture
def loud():
    before = logger.level
    yield logger
    logger.setLevel(before)


def compiled(function, config, **options):
    backend = torchair.get_npu_backend(compiler_config=config)
    return torch.compile(function, backend=backend, **{"dynamic": False} | options)


def test_run_eagerly(config, uncompiled):
    config.debug.run_eagerly = True
    x = randn(4)
    assert torch.equal(compiled(lambda x: x * 2 + 1, config)(x), x * 2 + 1)
    assert uncompiled == []


@pytest.mark.parametrize("kind", ["txt", "py"])
def test_graph_dump(config, tmp_path, kind):
    config.debug.graph_dump.type = kind
    config.debug.graph_dump.path = str(tmp_path)
    compiled(lambda x: x * 2, config)(randn(4))
    names = sorted(path.name for path in tmp_path.iterdir())
    pattern = rf"dynamo_\w+_graph_\d+_rank_0_pid_{os.getpid()}_ts_\d+\.{kind}"
    assert len(names) == 2
    assert all(re.fullmatch(pattern, name) for name in names)


def test_captured_graphs_are_dumped_as_code(config, tmp_path):
    config.mode = "reduce-overhead"
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.path = str(tmp_path)
    compiled(lambda x: x * 2, config)(randn(4))
    (path,) = tmp_path.iterdir()
    assert "torch.ops.aten.mul.Tensor" in path.read_text()


def test_data_dump(config, tmp_path):
    config.debug.data_dump.type = "npy"
    config.debug.data_dump.path = str(tmp_path)
    config.debug.data_dump.filter = lambda n: n if n.name == "sub" else None
    f = compiled(lambda x, y: (x + y) - 1, config)
    x, y = randn(3), randn(3)
    f(x, y)
    f(x, y)
    (graph,) = (tmp_path / "worldsize1_global_rank0").iterdir()
    assert sorted(step.name for step in graph.iterdir()) == ["0", "1"]
    saved = {path.name.rsplit(".", 2)[0]: np.load(path) for path in (graph / "1").iterdir()}
    assert set(saved) == {
        f"sub-aten.sub.Tensor.{side}" for side in ("INPUT.0", "INPUT.1", "OUTPUT.0")
    }
    np.testing.assert_array_equal(saved["sub-aten.sub.Tensor.INPUT.0"], (x + y).cpu().numpy())
    assert saved["sub-aten.sub.Tensor.INPUT.1"] == 1
    np.testing.assert_array_equal(saved["sub-aten.sub.Tensor.OUTPUT.0"], (x + y - 1).cpu().numpy())


@pytest.mark.parametrize("mode", ["input", "output", "all"])
def test_engine_dump(config, tmp_path, mode):
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path)
    config.dump_config.dump_mode = mode
    config.dump_config.dump_layer = "Add"
    config.dump_config.dump_step = "1"

    def f(x, y):
        with torchair.scope.data_dump():
            difference = x - y
        return x + y, difference, x * y

    g = compiled(f, config)
    x, y = randn(3), randn(3, 1)
    g(x, y)
    g(x, y)
    found = list(tmp_path.rglob("*.npy"))
    files = {path.name: np.load(path) for path in found}
    time, device, graph, model, step, _ = (
        found[0].relative_to(tmp_path / "worldsize1_global_rank0").parts
    )
    assert (len(time), device, graph[:6], step) == (14, "0", "graph_", "1") and int(model) > 0
    sides = {name.split(".", 3)[1] + "." + name.split(".", 3)[3] for name in files}
    inputs = {f"{op}.input.{i}.npy" for op in ("add", "sub") for i in (0, 1)}
    outputs = {f"{op}.output.0.npy" for op in ("add", "sub")}
    assert sides == {"input": inputs, "output": outputs, "all": inputs | outputs}[mode]
    for name, value in files.items():
        if ".output." in name:
            expected = x + y if name.startswith("add") else x - y
            np.testing.assert_array_equal(value, expected.cpu().numpy())


def test_engine_dump_statistics_from_a_file(config, tmp_path):
    path = tmp_path / "dump.json"
    section = {"dump_path": str(tmp_path), "dump_mode": "output", "dump_op_switch": "on"}
    path.write_text(json.dumps({"dump": section | {"dump_data": "stats"}}))
    config.dump_config.dump_config_path = str(path)
    x = randn(5)
    compiled(lambda x: x * 2, config)(x)
    (table,) = tmp_path.rglob("statistics.csv")
    (row,) = csv.DictReader(table.open())
    assert (row["operator"], row["stage"], row["shape"]) == ("mul", "output", "[5]")
    assert float(row["max"]) == pytest.approx((x * 2).max().item())


def test_captured_dump(config, tmp_path):
    config.mode = "npugraph_ex"
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path)
    x = randn(3)
    compiled(lambda x: x * 2 + 1, config)(x)
    folder = tmp_path / "worldsize1_global_rank0"
    names = {"arg0_1_device_0_0.pt", "mul_device_0_0.pt", "add_device_0_0.pt"}
    assert {path.name for path in folder.iterdir()} == names
    assert torch.equal(torch.load(folder / "add_device_0_0.pt"), (x * 2 + 1).cpu())


def test_captured_dump_leaves_out_what_the_program_saves(config, tmp_path):
    config.mode = "npugraph_ex"
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path)

    path = str(tmp_path / "mine.pt")

    def f(x):
        y = x * 2
        torch_npu.save_npugraph_tensor(y, save_path=path)
        return y + 1

    compiled(f, config)(randn(3))
    folder = tmp_path / "worldsize1_global_rank0"
    assert {path.name for path in folder.iterdir()} == {
        "arg0_1_device_0_0.pt",
        "add_device_0_0.pt",
    }


@pytest.mark.parametrize("skip", [True, False])
def test_fx_summary(config, tmp_path, uncompiled, skip):
    config.debug.fx_summary.type = "csv"
    config.debug.fx_summary.path = str(tmp_path)
    config.debug.fx_summary.skip_compile = skip
    compiled(lambda x: (x * 2) * 3 + 1, config)(randn(4))
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("summary_rank_0_pid_")
    rows = {row["目标函数"]: row for row in csv.DictReader(path.open(encoding="utf-8-sig"))}
    assert rows["aten.mul.Tensor"]["调用次数"] == "2"
    assert rows["aten.mul.Tensor"]["支持状态"] == "已支持"
    assert rows["aten.add.Tensor"]["输出统计"] == "1次：float32(4,)"
    assert (uncompiled == []) == skip


def test_custom_passes_run_before_and_after_the_built_in(config, uncompiled):
    seen = []

    def before(gm, example_inputs, config):
        seen.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
            node.target = torch.ops.aten.sub.Tensor

    def after(gm, example_inputs, options):
        assert options is config
        seen.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])

    config.post_grad_custom_pre_pass = before
    config.post_grad_custom_post_pass = after
    x = randn(4)
    assert torch.equal(compiled(lambda x: x[:] + 1, config)(x), x - 1)
    assert seen[0] == ["aten.slice.Tensor", "aten.add.Tensor"] or seen[0] == ["aten.add.Tensor"]
    assert seen[1] == ["aten.sub.Tensor"]


@pytest.mark.parametrize("remove", [True, False])
def test_noops_are_removed(config, remove):
    config.experimental_config.remove_noop_ops = remove
    left = []
    config.post_grad_custom_post_pass = lambda gm, inputs, config: left.extend(
        str(n.target) for n in gm.graph.nodes if n.op == "call_function"
    )
    x = randn(4, 4)
    y = compiled(lambda x: torch.nn.functional.pad(x.repeat(1, 1), [0, 0, 0, 0]) + 1, config)(x)
    assert torch.equal(y, x + 1)
    assert ("aten.repeat.default" not in left) == remove
    assert ("aten.constant_pad_nd.default" not in left) == remove


@pytest.fixture
def own_patterns():
    patterns.reset()
    yield
    patterns.reset()


def add_norm(x1, x2, gamma):
    total = torch.add(x1, x2)
    y, _ = torch_npu.npu_rms_norm(total, gamma)
    return y, total


def fused_add_norm(x1, x2, gamma):
    y, _, total = torch_npu.npu_add_rms_norm(x1, x2, gamma)
    return y, total


def register(**options):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x1, x2 = (torch.empty(1, 1, 2, device="npu", dtype=torch.float16) for _ in range(2))
        gamma = torch.empty(2, device="npu", dtype=torch.float16)
        torchair.register_replacement(
            search_fn=add_norm,
            replace_fn=fused_add_norm,
            example_inputs=(x1, x2, gamma),
            **options,
        )


@pytest.mark.usefixtures("own_patterns")
@pytest.mark.parametrize(("width", "enabled"), [(64, True), (32, True), (64, False)])
def test_register_replacement(config, width, enabled):
    register(extra_check=lambda match: match.kwargs["x1"].meta["val"].shape[-1] == 64)
    config.experimental_config.pattern_fusion_pass = enabled
    names = []
    config.post_grad_custom_post_pass = lambda gm, inputs, config: names.extend(
        str(n.target) for n in gm.graph.nodes if n.op == "call_function"
    )
    inputs = [randn(1, 3, width, dtype=torch.float16) for _ in range(2)]
    inputs.append(randn(width, dtype=torch.float16))
    results = compiled(add_norm, config)(*inputs)
    for actual, expected in zip(results, add_norm(*inputs), strict=True):
        torch.testing.assert_close(actual, expected)
    assert ("npu.npu_add_rms_norm.default" in names) == (width == 64 and enabled)


@pytest.mark.usefixtures("own_patterns")
def test_duplicate_patterns():
    register()
    register(skip_duplicates=True)
    with pytest.raises(RuntimeError, match="[Dd]uplicate"):
        register()


@pytest.mark.usefixtures("own_patterns")
def test_patterns_do_not_cross_streams(config):
    register()
    names = []
    config.post_grad_custom_post_pass = lambda gm, inputs, config: names.extend(
        str(n.target) for n in gm.graph.nodes if n.op == "call_function"
    )

    def f(x1, x2, gamma):
        total = torch.add(x1, x2)
        with torchair.scope.npu_stream_switch("1"):
            y, _ = torch_npu.npu_rms_norm(total, gamma)
        return y, total

    x1, x2 = (randn(1, 3, 64, dtype=torch.float16) for _ in range(2))
    compiled(f, config)(x1, x2, randn(64, dtype=torch.float16))
    assert "npu.npu_rms_norm.default" in names


@pytest.mark.usefixtures("own_patterns")
def test_built_in_fusion_with_a_cast(config):
    def f(x1, x2, gamma):
        y, _, total = torch_npu.npu_add_rms_norm(x1, x2, gamma)
        return y.view(-1, y.shape[-1]).to(torch.float32), y, total

    names = []
    config.post_grad_custom_post_pass = lambda gm, inputs, config: names.extend(
        str(n.target) for n in gm.graph.nodes if n.op == "call_function"
    )
    inputs = [randn(2, 3, 16, dtype=torch.float16) for _ in range(2)]
    inputs.append(randn(16, dtype=torch.float16))
    actual, expected = compiled(f, config)(*inputs), f(*inputs)
    assert "npu.npu_add_rms_norm_cast.default" in names
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-3)


def test_log_levels(config, loud, capsys):
    f = compiled(lambda x: x * 2, config)
    f(randn(4))
    assert capsys.readouterr().out == ""
    for level, tag in (
        (logging.DEBUG, "[DEBUG]"),
        (logging.INFO, "[INFO]"),
        (EVENT_LEVEL, "[EVENT]"),
    ):
        torch._dynamo.reset()
        loud.setLevel(level)
        f(randn(4))
        lines = capsys.readouterr().out
        assert f"{tag} TORCHAIR({os.getpid()}," in lines
        assert ("[DEBUG]" in lines) == (level == logging.DEBUG)
        assert ("[INFO]" in lines) == (level <= logging.INFO)


def test_debug_save(tmp_path):
    """TORCH_COMPILE_DEBUG=1 must be set before the process starts."""
    program = """
import torch, torch_npu, torchair
config = torchair.CompilerConfig()
config.debug.run_eagerly = True
model = torch.compile(lambda x: 2 * x, backend=torchair.get_npu_backend(compiler_config=config))
model(torch.ones(3, requires_grad=True, device="npu")).sum().backward()
"""
    environment = os.environ | {"TORCH_COMPILE_DEBUG": "1", "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    (run,) = (tmp_path / "torch_compile_debug").glob("run_*")
    folder = run / "torchair"
    assert "TORCHAIR(" in (folder / "debug.log").read_text()
    model = folder / "model__0"
    assert "2 *" in (model / "dynamo_out_graph.txt").read_text()
    for phase in ("forward", "backward"):
        names = sorted(path.name for path in (model / phase).iterdir())
        assert names[0] == f"000_aot_{phase}_graph.txt"
        assert names[1] == f"001_aot_{phase}_graph_after_optimize_noop_ops.txt"
        assert any(name.endswith(f"aot_{phase}_optimized_ge_graph.txt") for name in names)
