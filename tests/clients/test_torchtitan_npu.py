"""torchtitan-npu trains a tiny DeepSeek-V3 with its fused operators: one process, FSDP, tensor and expert parallel agree.

Both come as sources: TORCHTITAN_SOURCE and TORCHTITAN_NPU_SOURCE name their folders, TORCHTITAN_PYTHON an interpreter with
torchtitan's requirements and softnpu (this one, where it is not set).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

import pytest

from tests.clients import launch

SOURCES = [os.environ.get(name, "") for name in ("TORCHTITAN_NPU_SOURCE", "TORCHTITAN_SOURCE")]
PYTHON = os.environ.get("TORCHTITAN_PYTHON", sys.executable)

pytestmark = pytest.mark.skipif(
    not all(SOURCES), reason="TORCHTITAN_SOURCE and TORCHTITAN_NPU_SOURCE are not set"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sentences where torchtitan looks for its own, and the configuration as a package."""
    folder = tmp_path_factory.mktemp("torchtitan")
    rows = [{"text": " ".join(f"w{(i * j) % 97}" for j in range(300))} for i in range(200)]
    data = folder / "tests" / "assets" / "c4_test"
    data.mkdir(parents=True)
    (data / "data.json").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (folder / "torchtitan_tiny").mkdir()
    (folder / "torchtitan_tiny" / "__init__.py").touch()
    program = launch.PROGRAMS / "torchtitan_tiny.py"
    shutil.copy(program, folder / "torchtitan_tiny" / "config_registry.py")
    return folder


def train(folder, name: str, ranks: int, *options: str) -> list[float]:
    """The losses of four steps from the weights of the first run, which makes them."""
    output = folder / name
    if name != "seed":
        shutil.copytree(folder / "seed", output)
    said = launch.tool(
        "env", "-C", folder, PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", ranks,
        "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "-m", "torchtitan_npu.entry",
        "--module", "torchtitan_tiny", "--config", "tiny", "--dump_folder", output, "--checkpoint.enable", *options,
        PYTHONPATH=os.pathsep.join([str(folder), *SOURCES]),
        TOKENIZER=os.path.join(SOURCES[0], "tests", "assets", "tokenizer", "deepseekv3_tokenizer"),
    )  # fmt: skip
    found = {}
    for step, loss in re.findall(r"step: +(\d+).*?loss: +([\d.]+)", said):
        found[int(step)] = float(loss)
    return [found[step] for step in sorted(found)]


def test_parallel_training_agrees(folder):
    train(folder, "seed", 1, "--checkpoint.create_seed_checkpoint")
    alone = train(folder, "alone", 1)
    assert len(alone) == 4
    divided = train(folder, "divided", 2, "--parallelism.tensor_parallel_degree", "2")
    assert divided == pytest.approx(alone, abs=0.01)  # bfloat16
    shards = train(folder, "shards", 2)
    experts = train(folder, "experts", 2, "--parallelism.expert_parallel_degree", "2")
    assert experts == pytest.approx(shards, abs=1e-3)
