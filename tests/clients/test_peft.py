"""peft: LoRA on a language model, in transformers' training loop."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from tests.clients import tiny


def adapted(**options: object) -> PeftModel:
    model = tiny.llama()
    config = LoraConfig(
        r=8, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM",
        **options,
    )  # fmt: skip
    torch.manual_seed(0)
    return get_peft_model(model, config)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_adapters_learn_as_on_the_cpu(tmp_path, options):
    # The weights are random: without its embeddings and head, the model could not learn in some steps.
    options = {**options, "modules_to_save": ["embed_tokens", "lm_head"]}
    npu, cpu = (
        tiny.losses(adapted(**options), tiny.Counting(), tmp_path, device)
        for device in ("npu", "cpu")
    )
    assert tiny.falls(npu)
    torch.testing.assert_close(torch.tensor(npu), torch.tensor(cpu), rtol=1e-4, atol=1e-4)


def test_only_adapters_learn_and_they_merge_and_load(tmp_path):
    model = adapted()
    before = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    tiny.losses(model, tiny.Counting(), tmp_path, "npu", max_steps=4, learning_rate=0.02)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(parameter.cpu(), before[name])
    model.eval()
    words = tiny.Counting().words[:2].npu()
    with torch.no_grad():
        want = model(words).logits
        plain = tiny.llama().to("npu")(words).logits
        assert not torch.allclose(want, plain, atol=1e-2)
        model.save_pretrained(tmp_path / "adapter")
        again = PeftModel.from_pretrained(tiny.llama().to("npu"), tmp_path / "adapter").eval()
        torch.testing.assert_close(again(words).logits, want)
        torch.testing.assert_close(
            model.merge_and_unload()(words).logits, want, rtol=1e-3, atol=1e-3
        )
