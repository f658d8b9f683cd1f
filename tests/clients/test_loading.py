"""Data without the datasets package: DataLoader with workers and pinned memory, into accelerate's and the device's hands."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset
from transformers import DataCollatorWithPadding

from tests.clients import tiny


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, 12, step):
            yield torch.full((3,), float(i))


def test_workers_pinned_memory_and_non_blocking_copies():
    loader = DataLoader(
        tiny.Counting(32), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True
    )
    for _ in range(2):
        batches = list(loader)
        assert all(batch["input_ids"].is_pinned() for batch in batches)
        words = torch.cat([b["input_ids"].to("npu", non_blocking=True) for b in batches])
        assert torch.equal(words.cpu(), tiny.Counting(32).words)


def test_accelerate_moves_streams_to_the_device():
    loader = Accelerator().prepare(DataLoader(Stream(), batch_size=4, num_workers=2))
    rows = torch.cat(list(loader))
    assert rows.is_npu and sorted(rows[:, 0].tolist()) == [float(i) for i in range(12)]


def test_texts_are_tokenized_padded_and_understood():
    tokenizer, model = tiny.tokenizer(), tiny.bert().to("npu").eval()
    texts = ["w1 w2 w3", "w4", "w5 w6"]
    collate = DataCollatorWithPadding(tokenizer)
    loader = DataLoader([tokenizer(text) for text in texts], batch_size=3, collate_fn=collate)
    batch = next(iter(loader)).to("npu")
    assert batch["attention_mask"].sum(1).tolist() == [3, 1, 2]
    with torch.no_grad():
        together = model(**batch).logits
        alone = [model(**tokenizer(t, return_tensors="pt").to("npu")).logits[0] for t in texts]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-4)
