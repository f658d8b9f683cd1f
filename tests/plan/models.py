"""Small programs of the kinds that people plan: each runs for real and for its shapes alone."""

from __future__ import annotations

import json
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_npu

DEVICE = "npu"
PROGRAMS = (
    "cnn",
    "lstm",
    "transformer",
    "moe",
    "graph",
    "decode",
    "llama",
    "generate",
    "vit",
    "fsdp2",
)


def _train(model: nn.Module, batches: list[tuple[torch.Tensor, ...]], loss, **options) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    for batch in batches:
        optimizer.zero_grad()
        loss(model, *batch).backward()
        optimizer.step()


def cnn() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, bias=False),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, 10),
    ).to(DEVICE)
    batch = (torch.randn(8, 3, 32, 32, device=DEVICE), torch.randint(10, (8,), device=DEVICE))
    _train(model, [batch] * 2, lambda m, x, y: F.cross_entropy(m(x), y))


def lstm() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 32)
            self.lstm = nn.LSTM(32, 48, num_layers=2, batch_first=True)
            self.head = nn.Linear(48, 100)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embed(tokens))[0])

    tokens = torch.randint(100, (4, 12), device=DEVICE)
    _train(
        Tagger().to(DEVICE),
        [(tokens,)] * 2,
        lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
        foreach=False,
    )


def transformer() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(DEVICE)
    x = torch.randn(2, 24, 64, device=DEVICE)
    with torch.autocast("npu", dtype=torch.bfloat16):
        _train(model, [(x,)] * 2, lambda m, x: m(x).float().square().mean())


class _Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x)))


class _Experts(nn.Module):
    """Top-2 routing with a loop over experts, as transformers writes it."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(_Expert(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = torch.topk(self.gate(flat).softmax(-1), 2, dim=-1)
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, token = torch.where(mask[number])
            got = expert(flat[token]) * weights[token, place, None]
            out.index_add_(0, token, got.to(out.dtype))
        return out.view_as(x)


def moe() -> None:
    x = torch.randn(2, 16, 32, device=DEVICE)
    model = _Experts(32, 4).to(DEVICE)
    with torch.no_grad():  # the gate's own choice is balanced, as a plan takes it to be
        model.gate.weight.zero_()
        model.gate.weight[:, :4] = 40 * torch.eye(4, device=DEVICE)
        x[..., :4] = 0
        flat = x.view(32, 32)
        for token in range(32):
            flat[token, (2 * token) % 4] = 2.0
            flat[token, (2 * token + 1) % 4] = 1.0
    _train(model, [(x,)] * 2, lambda m, x: m(x).square().mean())


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_rms_norm(x, self.weight, 1e-6)[0]


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, size: int, inner: int) -> None:
        super().__init__()
        self.size, self.repeats = size, heads // groups
        self.norm1, self.norm2 = _Norm(width), _Norm(width)
        self.q, self.o = (
            nn.Linear(width, heads * size, bias=False),
            nn.Linear(heads * size, width, bias=False),
        )
        self.k, self.v = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (-1, self.size)).transpose(1, 2)

        h = self.norm1(x)
        q, k = (_rotated(split(y), cos, sin) for y in (self.q(h), self.k(h)))
        k, v = (y.repeat_interleave(self.repeats, 1) for y in (k, split(self.v(h))))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Llama's layers, as a rank of tensor parallelism holds them if heads, groups and inner are its share."""

    def __init__(self, vocabulary: int, width: int, layers: int, *shape: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(_Block(width, *shape) for _ in range(layers))
        self.norm, self.head = _Norm(width), nn.Linear(width, vocabulary, bias=False)
        self.size = shape[2]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        steps = torch.arange(0, self.size, 2, device=tokens.device, dtype=torch.float32)
        angles = torch.outer(place, 10000.0 ** (-steps / self.size)).repeat(1, 2)
        x = self.embed(tokens)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def llama() -> None:
    model = Llama(128, 64, 2, 4, 2, 16, 96).to(DEVICE, torch.bfloat16)
    _train_llama(model, torch.randint(128, (2, 20), device=DEVICE), 2)


def llama_70b() -> None:
    """A step of one of 8 ranks of tensor parallelism; the parameters alone are 17 GB."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = Llama(128256 // 8, 8192, 80, 64 // 8, 1, 128, 28672 // 8)
    _train_llama(model, torch.randint(128256 // 8, (1, 4096), device=DEVICE), 1)


def _train_llama(model: Llama, tokens: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        logits = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item():.2f}")


@torch.no_grad()
def decode() -> None:
    """A server's loop: a paged cache, one token of each sequence a step, and tokens that come back to the host."""
    width, heads, block = 64, 4, 16
    embed = torch.randn(128, width, device=DEVICE, dtype=torch.float16)
    project = torch.randn(width, 3 * width, device=DEVICE, dtype=torch.float16)
    cache = torch.zeros(2, 8 * block, heads, width // heads, device=DEVICE, dtype=torch.float16)
    table = torch.arange(8, device=DEVICE, dtype=torch.int32).view(2, 4)
    tokens, lengths = torch.tensor([3, 5], device=DEVICE), [7, 4]
    for _ in range(4):
        q, k, v = (embed[tokens] @ project).view(2, 3, heads, -1).unbind(1)
        places = torch.tensor(lengths, device=DEVICE)
        pages = table.gather(1, (places // block).unsqueeze(1)).squeeze(1)
        slots = pages.long() * block + places % block
        cache[0, slots], cache[1, slots] = k, v
        outputs = []
        for number, length in enumerate(lengths):
            rows = slots[number] - length + torch.arange(length + 1, device=DEVICE)
            keys, values = cache[0, rows].transpose(0, 1), cache[1, rows].transpose(0, 1)
            scores = torch.softmax(q[number].unsqueeze(1) @ keys.transpose(1, 2) / 4, -1)
            outputs.append((scores @ values).flatten())
        logits = torch.stack(outputs) @ embed.t()
        tokens = logits.argmax(-1)
        assert len(tokens.tolist()) == 2
        lengths = [length + 1 for length in lengths]


@torch.no_grad()
def generate() -> None:
    """Tokens one by one with a cache that grows, sampled by top-k and top-p."""
    width, vocabulary, heads = 64, 100, 4
    embed = torch.randn(vocabulary, width, device=DEVICE)
    project = torch.randn(width, 3 * width, device=DEVICE)
    tokens = torch.randint(vocabulary, (1, 5), device=DEVICE)
    keys = values = torch.empty(1, heads, 0, width // heads, device=DEVICE)
    for step in range(4):
        x = embed[tokens if step == 0 else tokens[:, -1:]]
        q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in (x @ project).chunk(3, -1))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        attended = F.scaled_dot_product_attention(q, keys, values)
        logits = attended.transpose(1, 2).flatten(2)[:, -1] @ embed.t() / 0.8
        logits = logits.masked_fill(logits < logits.topk(20).values[:, -1:], -torch.inf)
        chances, order = logits.softmax(-1).sort(descending=True)
        chances = chances.masked_fill(chances.cumsum(-1) - chances > 0.9, 0)
        chosen = torch.multinomial(chances / chances.sum(-1, keepdim=True), 1)
        tokens = torch.cat([tokens, order.gather(-1, chosen)], 1)
    assert tokens.shape == (1, 9)


class _Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.head = nn.Conv2d(3, 48, 8, 8), nn.Linear(48, 10)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, activation="gelu")
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x.mean(1))


def vit() -> None:
    """A vision Transformer whose layers are computed again in the backward pass."""
    batch = (torch.randn(4, 3, 32, 32, device=DEVICE), torch.randint(10, (4,), device=DEVICE))
    loss = lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1)  # noqa: E731
    _train(_Patches().to(DEVICE), [batch] * 2, loss)


def graph() -> None:
    weight = torch.randn(64, 64, device=DEVICE, dtype=torch.float16)
    x, count = (
        torch.randn(8, 64, device=DEVICE, dtype=torch.float16),
        torch.zeros(1, device=DEVICE, dtype=torch.int64),
    )
    torch.mm(x, weight)
    captured = torch.npu.NPUGraph()
    with torch.npu.graph(captured):
        y = F.gelu(x @ weight) + x
        count += 1
    for _ in range(3):
        captured.replay()
    assert count.item() == 3
    y.sum()


def fsdp2() -> None:
    """A rank of two, real or alone."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("hccl")
    model = nn.Sequential(*(_Expert(64) for _ in range(3))).to(DEVICE)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=half)
    fully_shard(model, mp_policy=half)
    x = torch.randn(8, 64, device=DEVICE)
    _train(model, [(x,)] * 2, lambda m, x: m(x).float().square().mean())
    dist.destroy_process_group()


def report(name: str) -> None:
    """Runs a program and prints what it did to memory, as one line of JSON."""
    if os.environ.get("PLAN") == "1":
        torch_npu._plan.start()
    torch.manual_seed(1)
    device = int(os.environ.get("RANK", "0"))
    torch.npu.set_device(device)
    if name in PROGRAMS:
        torch.npu.memory._record_memory_history(max_entries=1 << 20)
    globals()[name]()
    torch.npu.synchronize()
    found = {
        "allocated": torch.npu.max_memory_allocated(),
        "reserved": torch.npu.max_memory_reserved(),
        "events": [
            (event["action"], event["size"])
            for event in torch.npu.memory._snapshot()["device_traces"][device]
        ],
    }
    print("MEMORY " + json.dumps(found))
