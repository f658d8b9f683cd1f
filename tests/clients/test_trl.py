"""trl: SFT, DPO and GRPO of a small language model, with the losses of the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.clients import tiny

trl = pytest.importorskip("trl", reason="trl is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

STEPS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """The folder of the model; trl loads it again as its reference."""
    folder = tmp_path_factory.mktemp("model")
    tiny.llama().save_pretrained(folder)
    words().save_pretrained(folder)
    return str(folder)


def words() -> object:
    made = tiny.tokenizer()
    made.eos_token = "w1"
    return made


def trainer_of(kind: type, model: str, **arguments: object) -> object:
    return kind(model=model, processing_class=words(), **arguments)


def sentence(first: int, count: int, stride: int = 3) -> str:
    return " ".join(f"w{(first + stride * i) % tiny.WORDS}" for i in range(count))


def options(folder: object, device: str, **changes: object) -> dict:
    """trl spreads a model over all devices of a single process by itself, which its losses do not stand: device_map."""
    return {
        "output_dir": str(folder), "use_cpu": device == "cpu", "per_device_train_batch_size": 4, "max_steps": STEPS,
        "learning_rate": 5e-3, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
        "bf16": False, "seed": 0, "model_init_kwargs": {"device_map": None}, **changes,
    }  # fmt: skip


def losses(trainer: object, device: str) -> torch.Tensor:
    assert trainer.model.device.type == device
    trainer.train()
    return torch.tensor([float(e["loss"]) for e in trainer.state.log_history if "loss" in e])


def test_sft_as_on_the_cpu(tmp_path, model):
    data = datasets.Dataset.from_dict({"text": [sentence(i, 12) for i in range(16)]})
    found = []
    for device in ("npu", "cpu"):
        arguments = trl.SFTConfig(**options(tmp_path, device), max_length=16)
        trainer = trainer_of(trl.SFTTrainer, model, args=arguments, train_dataset=data)
        found.append(losses(trainer, device))
    assert tiny.falls(found[0].tolist(), 0.95)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_dpo_as_on_the_cpu(tmp_path, model):
    rows = range(16)
    data = datasets.Dataset.from_dict({
        "prompt": [sentence(i, 4) + " " for i in rows],
        "chosen": [sentence(i + 12, 4) for i in rows],
        "rejected": [sentence(i + 50, 4, 7) for i in rows],
    })  # fmt: skip
    found = []
    for device in ("npu", "cpu"):
        arguments = trl.DPOConfig(**options(tmp_path, device), beta=0.5)
        trainer = trainer_of(trl.DPOTrainer, model, args=arguments, train_dataset=data)
        found.append(losses(trainer, device))
    assert found[0][0].item() == pytest.approx(0.6931, abs=1e-3), (
        "the policy begins as the reference"
    )
    assert found[0][-1] < found[0][0]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def by_place(completions: list[str], **_: object) -> list[float]:
    """A reward that does not depend on the sampled words, so that both devices see the same advantages."""
    return [float(i % 2) for i in range(len(completions))]


def test_grpo_as_on_the_cpu(tmp_path, model):
    data = datasets.Dataset.from_dict({"prompt": [sentence(i, 4) for i in range(8)]})
    found = []
    for device in ("npu", "cpu"):
        arguments = trl.GRPOConfig(
            **options(tmp_path, device, max_steps=3, learning_rate=1e-4), num_generations=4, max_completion_length=6,
            top_k=1, beta=0.1, loss_type="grpo",
        )  # fmt: skip
        trainer = trainer_of(
            trl.GRPOTrainer, model, args=arguments, train_dataset=data, reward_funcs=by_place
        )
        losses(trainer, device)
        logs = [entry for entry in trainer.state.log_history if "kl" in entry]
        # Equal completions with opposite advantages: the gradient is the KL term's, of the size of rounding.
        found.append(torch.tensor([[e["loss"], e["kl"], e["reward"]] for e in logs]))
    assert len(found[0]) == 3 and (found[0][:, 2] == 0.5).all()
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-4)
