"""Megatron-core with MindSpeed: tensor parallel training gives the losses of one device, pipelines train.

Both are sources, not packages: MEGATRON_SOURCE and MINDSPEED_SOURCE name their folders (Megatron-LM
core_v0.12.1, which MindSpeed's master asks for), and the environment has their requirements.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.clients import launch

SOURCES = [os.environ.get(name, "") for name in ("MINDSPEED_SOURCE", "MEGATRON_SOURCE")]

pytestmark = pytest.mark.skipif(
    not all(SOURCES), reason="MINDSPEED_SOURCE and MEGATRON_SOURCE are not set"
)


FUSED = [
    "--use-fused-rmsnorm",
    "--use-fused-swiglu",
    "--use-fused-rotary-pos-emb",
    "--use-flash-attn",
]


def losses(
    folder, tensor: int, pipeline: int, *flags: str, **environment: str
) -> list[list[float]]:
    """Of every rank of the last stage."""
    launch.tool(
        "torchrun", "--nproc-per-node", tensor * pipeline, "--master-port", 29523,
        launch.PROGRAMS / "megatron_gpt.py", tensor, pipeline, folder,
        "--tensor-model-parallel-size", tensor, "--pipeline-model-parallel-size", pipeline, *flags,
        PYTHONPATH=os.pathsep.join([*SOURCES, os.environ.get("PYTHONPATH", "")]), CUDA_DEVICE_MAX_CONNECTIONS="1",
        **environment,
    )  # fmt: skip
    return [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("losses*.json"))]


def test_tensor_parallel_as_one_device(tmp_path):
    (tmp_path / "one").mkdir()
    (one,) = losses(tmp_path / "one", 1, 1)
    (tmp_path / "two").mkdir()
    first, second = losses(tmp_path / "two", 2, 1)
    assert one[-1] < 0.8 * one[0]
    assert first == pytest.approx(second, rel=1e-6)
    assert first == pytest.approx(one, rel=1e-3)


def test_a_pipeline_of_two_stages_trains(tmp_path):
    (found,) = losses(tmp_path, 1, 2)
    assert found[-1] < 0.8 * found[0]


def test_a_mixture_of_experts_trains(tmp_path):
    (found,) = losses(tmp_path, 1, 1, EXPERTS="4")
    assert found[-1] < 0.8 * found[0]


def test_fused_operators_as_the_formulas(tmp_path):
    """MindSpeed's flags put torch_npu's operators in the place of Megatron's code; the losses stay."""
    found = {}
    for name, flags in {"plain": [], "fused": FUSED}.items():
        (tmp_path / name).mkdir()
        (found[name],) = losses(tmp_path / name, 1, 1, *flags, GATED="1")
    assert found["fused"] == pytest.approx(found["plain"], rel=1e-4)
    called = json.loads((tmp_path / "fused" / "operators0.json").read_text("utf-8"))
    assert {"npu_rms_norm", "npu_swiglu", "npu_fusion_attention"} <= set(called)
