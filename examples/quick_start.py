"""`make demo`: trains a small Llama-style language model on the emulated NPU.

The model is built from the card's fused operators (npu_rms_norm, npu_rotary_mul, npu_fusion_attention, npu_swiglu),
trained in bfloat16 under autocast. The same model in plain PyTorch, on the CPU device, runs beside it from the same
weights: the losses agree, and the times compare. It learns to spell the text below, byte by byte.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import nn

import torch_npu

TEXT = (
    "softnpu is torch_npu without an NPU: a PyTorch device in host memory. Every documented operator computes what "
    "the documentation says, and what would fail on the card fails here first. "
) * 4
WIDTH, HEADS, LAYERS, LENGTH, BATCH, STEPS = 128, 4, 2, 64, 16, 40
CAUSAL = 2  # sparse_mode of npu_fusion_attention


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding in plain PyTorch; x is (batch, length, heads, size)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Norm(nn.Module):
    """Root-mean-square normalization: one fused operator on the NPU."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "npu":
            return torch_npu.npu_rms_norm(x, self.weight.to(x.dtype), epsilon=1e-6)[0]
        return F.rms_norm(x, (WIDTH,), self.weight, eps=1e-6)


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        hidden = torch.ones(2048, 2048, dtype=torch.bool).triu(1)  # the operator's own causal mask
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        size = WIDTH // HEADS
        q, k, v = self.inputs(x).view(*x.shape[:2], 3, HEADS, size).unbind(2)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        if x.device.type == "npu":
            q, k = torch_npu.npu_rotary_mul(q, cos, sin), torch_npu.npu_rotary_mul(k, cos, sin)
            options = {"scale": size**-0.5, "atten_mask": self.hidden, "sparse_mode": CAUSAL}
            y = torch_npu.npu_fusion_attention(q, k, v, HEADS, "BSND", **options)[0]
        else:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            parts = (t.transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)
        return self.output(y.reshape(x.shape))


class FeedForward(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        if x.device.type == "npu":
            return self.down(torch_npu.npu_swiglu(hidden, dim=-1))
        gate, value = hidden.chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention = Norm(), Attention()
        self.between, self.feed = Norm(), FeedForward()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), cos, sin)
        return x + self.feed(self.between(x))


class Llama(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, 256, bias=False)
        size = WIDTH // HEADS
        angles = torch.arange(LENGTH)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.cat((angles, angles), dim=-1)[None, :, None, :]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class Training:
    """One model with its optimizer on one device."""

    def __init__(self, weights: dict[str, torch.Tensor], device: str) -> None:
        self.device = device
        self.model = Llama()
        self.model.load_state_dict(weights)
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.losses: list[float] = []
        self.times: list[float] = []

    def step(self, ids: torch.Tensor) -> None:
        start = time.perf_counter()
        ids = ids.to(self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.times.append(time.perf_counter() - start)


def main() -> None:
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(TEXT.encode()), dtype=torch.uint8).long()
    weights = Llama().state_dict()
    npu, cpu = Training(weights, "npu"), Training(weights, "cpu")
    console = Console()
    table = Table(title="bfloat16 training, the same weights and data on both devices")
    for column in ("step", "loss npu", "loss cpu", "ms/step npu", "ms/step cpu", "npu memory MiB"):
        table.add_column(column, justify="right")
    with Live(table, console=console):
        for step in range(1, STEPS + 1):
            starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH,))
            ids = torch.stack([text[s : s + LENGTH + 1] for s in starts.tolist()])
            npu.step(ids)
            cpu.step(ids)
            if step == 1 or step % 10 == 0:
                table.add_row(
                    str(step), f"{npu.losses[-1]:.4f}", f"{cpu.losses[-1]:.4f}",
                    f"{1e3 * statistics.median(npu.times[-10:]):.1f}", f"{1e3 * statistics.median(cpu.times[-10:]):.1f}",
                    f"{torch.npu.max_memory_allocated() / 2**20:.1f}",
                )  # fmt: skip
    ratio = statistics.median(cpu.times[1:]) / statistics.median(npu.times[1:])
    name = torch.npu.get_device_name()
    total = torch.npu.get_device_properties().total_memory / 2**30
    console.print(
        f"{name} (emulated, {total:g} GiB): loss {npu.losses[0]:.2f} -> {npu.losses[-1]:.2f} in {STEPS} steps, "
        f"{ratio:.1f} times the speed of the CPU device in bfloat16."
    )
    if npu.losses[-1] > npu.losses[0] / 2:
        raise SystemExit("the loss did not fall: something is wrong")


if __name__ == "__main__":
    main()
