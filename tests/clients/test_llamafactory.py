"""LLaMA-Factory's command line on the device: the losses of the CPU.

It comes as a source and asks for other versions than the rest: LLAMAFACTORY_SOURCE names its folder, LLAMAFACTORY_PYTHON an
interpreter with its requirements and softnpu (this one, where it is not set).
"""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.clients import launch
from tests.clients.vllm_ascend import models

SOURCE = os.environ.get("LLAMAFACTORY_SOURCE", "")
PYTHON = os.environ.get("LLAMAFACTORY_PYTHON", sys.executable)

pytestmark = pytest.mark.skipif(not SOURCE, reason="LLAMAFACTORY_SOURCE is not set")

METHODS = {
    "lora": {"stage": "sft", "finetuning_type": "lora", "lora_rank": 4, "lora_dropout": 0.0},
    "full": {"stage": "sft", "finetuning_type": "full"},
    "dpo": {
        "stage": "dpo", "finetuning_type": "lora", "lora_rank": 4, "lora_dropout": 0.0, "pref_beta": 0.1,
    },
}  # fmt: skip


def words(first: int, step: int, count: int) -> str:
    return " ".join(f"w{4 + (first + step * i) % 200}" for i in range(count))


@pytest.fixture
def data(tmp_path):
    """A model, and sentences with good and bad ends."""
    rows = [
        {
            "instruction": words(7 * i, 1, 6), "input": "", "output": words(i, 3, 8), "chosen": words(i, 3, 8),
            "rejected": words(i, 5, 8),
        }
        for i in range(16)
    ]  # fmt: skip
    pairs = {
        "file_name": "rows.json", "ranking": True,
        "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"},
    }  # fmt: skip
    described = {"rows": {"file_name": "rows.json"}, "pairs": pairs}
    (tmp_path / "rows.json").write_text(json.dumps(rows), "utf-8")
    (tmp_path / "dataset_info.json").write_text(json.dumps(described), "utf-8")
    models.make("llama", tmp_path)
    return tmp_path


def losses(data, method: str, device: str) -> list[float]:
    output = data / device
    options = {
        "model_name_or_path": str(data / "llama"), "do_train": True, "template": "default", "cutoff_len": 64,
        "dataset": "pairs" if method == "dpo" else "rows", "dataset_dir": str(data), "report_to": "none",
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-3,
        "num_train_epochs": 2, "logging_steps": 1, "save_strategy": "no", "seed": 1, "output_dir": str(output),
        "use_cpu": device == "cpu", **METHODS[method],
    }  # fmt: skip
    file = data / f"{device}.yaml"  # JSON is YAML too
    file.write_text(json.dumps(options), "utf-8")
    launch.tool(
        PYTHON, "-m", "llamafactory.cli", "train", file, PYTHONPATH=os.path.join(SOURCE, "src"),
        SOFTNPU_DEVICES="1", DISABLE_VERSION_CHECK="1",
    )  # fmt: skip
    lines = (output / "trainer_log.jsonl").read_text("utf-8").splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


@pytest.mark.parametrize("method", METHODS)
def test_training_as_on_the_cpu(data, method):
    device, cpu = losses(data, method, "npu"), losses(data, method, "cpu")
    assert len(device) == 8
    assert device == pytest.approx(cpu, rel=1e-4)
    assert min(device[4:]) < device[0]
