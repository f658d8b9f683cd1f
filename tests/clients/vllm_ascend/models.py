"""Tiny models with random weights, and the tokens that transformers gives for them on the CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

VOCABULARY = 256
PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12], list(range(20, 37))]
#: longer than a block of the KV cache (128 tokens), with a common beginning
LONG = [[4 + i % 200 for i in range(140)] + end for end in ([210, 211, 212], [220, 221])]

_PLAIN = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3, "tie_word_embeddings": False,
}  # fmt: skip
_LATENT = {
    **_PLAIN, "num_key_value_heads": 4, "head_dim": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
}  # fmt: skip
CONFIGURATIONS = {
    "llama": ("LlamaConfig", _PLAIN),
    "qwen3": ("Qwen3Config", _PLAIN),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**_PLAIN, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {**_LATENT, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**_LATENT, "q_lora_rank": 64, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
    ),
}  # fmt: skip


def make(name: str, folder: Path) -> Path:
    """A checkpoint with a tokenizer of the words w4, w5, ... under `folder`."""
    import transformers

    kind, options = CONFIGURATIONS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, kind)(**options), dtype=torch.float32
    )
    with torch.no_grad():
        for label, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight.dim() > 1 or "correction_bias" in label:
                weight.normal_(0, 0.15)
    path = folder / name
    model.save_pretrained(path)
    _tokenizer().save_pretrained(path)
    if name == "deepseek_v3":  # vLLM asks for the names of the published configuration
        file = path / "config.json"
        wanted = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | wanted), "utf-8")
    return path


def _tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>", "<pad>"]
    words = {word: i for i, word in enumerate(special + [f"w{i}" for i in range(4, VOCABULARY)])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    made.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    return made


def load(path: Path, dtype: torch.dtype = torch.float32, adapter: Path | None = None):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, experts_implementation="eager"
    )
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter)
    return model.eval()


def expected(
    path: Path, tokens: int, prompts: Sequence[list[int]] = PROMPTS, adapter: Path | None = None
) -> list[list[int]]:
    """Greedy tokens by transformers on the CPU in float32, without a cache."""
    model = load(path, adapter=adapter)
    found = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(tokens):
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
        found.append(ids[len(prompt) :])
    return found


def adapter(path: Path, folder: Path) -> Path:
    """A LoRA adapter for the model, by peft."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(load(path), LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(0, 0.15)
    made = folder / "adapter"
    model.save_pretrained(made)
    return made


def eagle(path: Path, folder: Path) -> Path:
    """A drafting model (EAGLE) of one layer for the Llama at `path`."""
    import safetensors.torch

    weights = safetensors.torch.load_file(path / "model.safetensors")
    torch.manual_seed(2)
    draft = {
        name.removeprefix("model."): torch.randn_like(weight) * 0.15 if weight.dim() > 1 else weight
        for name, weight in weights.items()
        if ".layers.0." in name and "input_layernorm" not in name
    }
    size = weights["model.embed_tokens.weight"].shape[1]
    draft["fc.weight"] = torch.randn(size, 2 * size) * 0.15
    made = folder / "eagle"
    made.mkdir()
    safetensors.torch.save_file(draft, made / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text("utf-8"))
    config |= {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
    (made / "config.json").write_text(json.dumps(config), "utf-8")
    return made
