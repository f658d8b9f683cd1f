"""transformers: its Trainer, its attention for NPUs, generation and pipelines."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch
from transformers import AutoModelForCausalLM, pipeline
from transformers.utils import is_torch_bf16_gpu_available, is_torch_npu_available

import softnpu._C as device_log
from tests.clients import tiny


@pytest.fixture
def operators():
    """Counts what ran on the device since the test began."""
    device_log.trace_start(False, 1 << 20)
    yield lambda: [entry[0] for entry in device_log.trace_take()]
    device_log.trace_stop()


def test_it_finds_the_device():
    assert is_torch_npu_available() and is_torch_npu_available(check_device=True)
    assert is_torch_bf16_gpu_available()
    assert importlib.metadata.version("torch_npu").startswith("2.13.0+softnpu")


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_npu_fused", "sgd"])
def test_trainer_fine_tunes_llama_as_on_the_cpu(tmp_path, optimizer):
    rate = 0.5 if optimizer == "sgd" else 5e-3
    on_cpu = optimizer if optimizer != "adamw_torch_npu_fused" else "adamw_torch"
    npu = tiny.losses(
        tiny.llama(), tiny.Counting(), tmp_path, "npu", optim=optimizer, learning_rate=rate
    )
    cpu = tiny.losses(
        tiny.llama(), tiny.Counting(), tmp_path, "cpu", optim=on_cpu, learning_rate=rate
    )
    assert tiny.falls(npu)
    torch.testing.assert_close(torch.tensor(npu), torch.tensor(cpu), rtol=1e-4, atol=1e-4)


def test_trainer_fine_tunes_bert_as_on_the_cpu(tmp_path):
    npu, cpu = (
        tiny.losses(tiny.bert(), tiny.Halves(), tmp_path, device, max_steps=16)
        for device in ("npu", "cpu")
    )
    assert tiny.falls(npu)
    torch.testing.assert_close(torch.tensor(npu), torch.tensor(cpu), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make,data", [(tiny.llama, tiny.Counting), (tiny.bert, tiny.Halves)])
def test_bf16_with_the_card_s_attention(tmp_path, operators, make, data):
    npu = tiny.losses(make("flash_attention_2"), data(), tmp_path, "npu", bf16=True, max_steps=16)
    names = operators()
    assert names.count("npu_fusion_attention") >= 2 * 16, "two layers, every step"
    assert tiny.falls(npu)
    tiny.losses(make(), data(), tmp_path, "npu", bf16=True, max_steps=1)
    assert "npu_fusion_attention" not in operators(), "it is transformers' npu_flash_attention"
    full = tiny.losses(make(), data(), tmp_path, "cpu", max_steps=16)
    torch.testing.assert_close(torch.tensor(npu), torch.tensor(full), rtol=0.03, atol=0.03)


def test_gradient_checkpointing_accumulation_and_evaluation(tmp_path):
    options = {"gradient_checkpointing": True, "gradient_accumulation_steps": 2, "max_steps": 4}
    npu, cpu = (
        tiny.losses(tiny.llama(), tiny.Counting(), tmp_path, device, **options)
        for device in ("npu", "cpu")
    )
    torch.testing.assert_close(torch.tensor(npu), torch.tensor(cpu), rtol=1e-4, atol=1e-4)


def test_training_goes_on_from_a_checkpoint(tmp_path):
    straight = tiny.losses(tiny.llama(), tiny.Counting(), tmp_path / "a", "npu", max_steps=6)
    saving = {"save_strategy": "steps", "save_steps": 3}
    tiny.losses(tiny.llama(), tiny.Counting(), tmp_path / "b", "npu", max_steps=6, **saving)
    arguments = tiny.TrainingArguments(
        output_dir=str(tmp_path / "b"), per_device_train_batch_size=16, max_steps=6,
        learning_rate=5e-3, logging_steps=1, report_to=[], disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = tiny.Trainer(model=tiny.llama(), args=arguments, train_dataset=tiny.Counting())
    trainer.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-3"))
    found = [float(e["loss"]) for e in trainer.state.log_history if "loss" in e]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(straight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}])
def test_generate_says_what_the_cpu_says(options):
    words = tiny.Counting().words[:3, :8]
    answers = []
    for device in ("npu", "cpu"):
        model = tiny.llama().to(device).eval()
        answers.append(
            model.generate(words.to(device), max_new_tokens=12, do_sample=False, **options).cpu()
        )
    assert answers[0].shape == (3, 20)
    assert torch.equal(*answers)


def test_generate_with_the_card_s_attention(operators):
    words = tiny.Counting().words[:2, :8]
    model = tiny.llama("flash_attention_2").to("npu", torch.bfloat16).eval()
    answer = model.generate(words.npu(), max_new_tokens=4, do_sample=False)
    assert answer.shape == (2, 12) and "npu_fusion_attention" in operators()


def test_sampling_repeats_from_its_seed():
    model, words = tiny.llama().to("npu").eval(), tiny.Counting().words[:2, :4].npu()
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(model.generate(words, max_new_tokens=16, do_sample=True).cpu())
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_pipelines():
    results = []
    for device in ("npu:1", "cpu"):
        write = pipeline(
            "text-generation", model=tiny.llama(), tokenizer=tiny.tokenizer(), device=device
        )
        sort = pipeline(
            "text-classification", model=tiny.bert(), tokenizer=tiny.tokenizer(), device=device
        )
        assert str(write.model.device) == device
        text = write("w3 w6 w9", max_new_tokens=5, do_sample=False)[0]["generated_text"]
        results.append((text, sort("w3 w6 w9")[0]))
    (npu, npu_label), (cpu, cpu_label) = results
    assert npu == cpu and npu.count("w") == 8
    assert npu_label["label"] == cpu_label["label"]
    assert npu_label["score"] == pytest.approx(cpu_label["score"], abs=1e-5)


def test_saved_models_load_onto_the_device(tmp_path):
    model = tiny.llama().to("npu")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="npu:2", dtype=torch.float16)
    assert {str(p.device) for p in again.parameters()} == {"npu:2"}
    words = tiny.Counting().words[:2]
    with torch.no_grad():
        want, got = model(words.npu()).logits.cpu(), again(words.to("npu:2")).logits.float().cpu()
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


def test_a_model_is_spread_over_devices(tmp_path):
    model = tiny.llama()
    model.save_pretrained(tmp_path)
    places = {"model.embed_tokens": 0, "model.layers.0": 0, "model.rotary_emb": 0}
    places |= {"model.layers.1": 1, "model.norm": 1, "lm_head": 1}
    spread = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=places)
    assert {str(p.device) for p in spread.parameters()} == {"npu:0", "npu:1"}
    words = tiny.Counting().words[:2]
    with torch.no_grad():
        got, want = spread(words.npu()).logits.cpu(), model(words).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
