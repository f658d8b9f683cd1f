"""Windows and schedule contexts of attention and FFN workers for tests."""

from __future__ import annotations

import torch

import torch_npu
from torch_npu.ops._shared import _schedule_context as contexts


class Attention:
    """An attention worker with a window of its own: its table of flags and its rows."""

    def __init__(
        self, batches: int, tokens: int, experts: int, hidden: int, dtype: torch.dtype
    ) -> None:
        table = batches * tokens * experts * 4
        start = -(-table // 512) * 512
        data = batches * tokens * experts * hidden * dtype.itemsize
        self.window = torch.zeros(start + data + 512, dtype=torch.int8, device="npu")
        self.holder = torch_npu._afd.create_schedule_context_holder(
            1, 1, batches, tokens, experts, 4, 512, 512,
            attention_window=self.window.data_ptr(), attention_window_size=self.window.numel(),
        )  # fmt: skip
        self.context = self.holder.get_schedule_context_tensor()
        self.flags = self.window[:table].view(torch.int32).view(batches, tokens, experts)
        rows = self.window[start : start + data].view(dtype)
        self.rows = rows.view(batches, tokens, experts, hidden)
        values = torch.randn(self.rows.shape, generator=torch.Generator().manual_seed(3))
        self.rows.copy_(values.to(dtype))


class Ffn:
    """An FFN worker with a window of its own: its table and the tokens' bytes."""

    def __init__(self, sessions: int, batches: int, tokens: int, experts: int, size: int) -> None:
        table = sessions * batches * (2 + tokens * experts) * 4
        start = -(-table // 512) * 512
        data = sessions * batches * tokens * experts * size
        self.window = torch.zeros(start + data + 512, dtype=torch.int8, device="npu")
        self.holder = torch_npu._afd.create_schedule_context_holder(
            0, sessions, batches, tokens, experts, 8, size, 512,
            ffn_window=self.window.data_ptr(), ffn_window_size=self.window.numel(),
        )  # fmt: skip
        self.context = self.holder.get_schedule_context_tensor()
        self.table = self.window[:table].view(torch.int32).view(sessions, batches, -1)
        self.data = self.window[start : start + data].view(sessions, batches, tokens, experts, size)
        values = torch.randint(-99, 99, self.data.shape, generator=torch.Generator().manual_seed(4))
        self.data.copy_(values.to(torch.int8))

    def send(self, session: int, batch: int, layer: int, experts: torch.Tensor) -> None:
        """What npu_attention_to_ffn of a session writes."""
        self.table[session, batch, 2:] = experts.flatten().int().npu()
        self.table[session, batch, 1] = layer
        self.table[session, batch, 0] = 1

    def listed(self, name: str, *shape: int) -> list[int]:
        """A list that the scheduler has written."""
        fields = contexts.Context("test", "context", self.context.cpu())
        found: list[int] = fields.memory(f"ffn.{name}_buf", shape, torch.int32).tolist()
        return found


def field(context: torch.Tensor, name: str) -> int:
    return contexts.Context("test", "context", context.cpu())[name]


def changed(context: torch.Tensor, **fields: int) -> torch.Tensor:
    """A copy with other fields; `__` stands for a dot."""
    host = context.cpu()
    values = contexts.Context("test", "context", host)
    for name, value in fields.items():
        values[name.replace("__", ".")] = value
    return host.npu()
