"""Small models with random weights, and data that a small model learns in some steps."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

WORDS = 97
LENGTH = 32


class Counting(Dataset):
    """Sentences that count on in threes: the next word follows from the one before."""

    def __init__(self, sentences: int = 64) -> None:
        first = torch.randint(0, WORDS, (sentences, 1), generator=torch.Generator().manual_seed(0))
        self.words = (first + 3 * torch.arange(LENGTH)) % WORDS

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index]}


class Halves(Counting):
    """The same sentences, to be sorted by their first word; some are padded on the right."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words, real = self.words[index], LENGTH - index % 4
        return {
            "input_ids": words,
            "attention_mask": (torch.arange(LENGTH) < real).long(),
            "labels": (words[0] < WORDS // 2).long(),
        }


def llama(attention: str = "sdpa", **changes: object) -> LlamaForCausalLM:
    set_seed(0)
    config = {
        "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**config, **changes}, attn_implementation=attention))


def bert(attention: str = "sdpa") -> BertForSequenceClassification:
    set_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=2, attn_implementation=attention,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def tokenizer() -> PreTrainedTokenizerFast:
    """Words w0, w1, ... and a mark for anything else."""
    words = {f"w{i}": i for i in range(WORDS)}
    model = Tokenizer(models.WordLevel(words, unk_token="w0"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="w0", unk_token="w0")


def losses(
    model: torch.nn.Module, data: Dataset, folder: object, device: str, **changes: object
) -> list[float]:
    """The loss of every step of transformers' own training loop, without dropout and with the same batches."""
    options = {
        "per_device_train_batch_size": 16, "max_steps": 10, "learning_rate": 5e-3, "logging_steps": 1,
        "report_to": [], "disable_tqdm": True, "save_strategy": "no", "seed": 0,
    }  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=device == "cpu", **{**options, **changes}
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    assert trainer.model.device.type == device
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def falls(found: list[float], share: float = 0.8) -> bool:
    """The last loss is well below the first."""
    return found[-1] < share * found[0]
