"""Graph mode: compiled models against Inductor on the CPU device, against eager, and warm against cold starts."""

from __future__ import annotations

import copy
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.harness import Case, Goal, Versus
from benchmarks.models import decoder

COMPILED = Goal(1.05)
HALF = Goal(1 / 5)
WARM = Goal(1 / 10)
REPLAY = Goal(1 / 2)


def cases() -> Iterator[Case]:
    yield from compiled(torch.float32, COMPILED)
    yield from compiled(torch.bfloat16, HALF)
    yield from decode()
    yield from warm_start()


class Mlp(nn.Module):
    def __init__(self, width: int = 512, hidden: int = 2048):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(F.gelu(self.up(x))))


class Attention(nn.Module):
    def __init__(self, width: int = 512, heads: int = 8):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Convolutions(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).mean((2, 3))


def chain(x: torch.Tensor) -> torch.Tensor:
    """Memory-bound: twelve operators that fuse into one pass."""
    for _ in range(4):
        x = torch.sigmoid(x * 1.5 + 0.1) * x
    return x


def models() -> Iterator[tuple[str, Any, torch.Tensor]]:
    yield "pointwise chain", chain, torch.randn(1 << 20)
    yield "mlp", Mlp().eval(), torch.randn(128, 512)
    yield "attention", Attention().eval(), torch.randn(2, 256, 512)
    yield "convolutions", Convolutions().eval(), torch.randn(4, 3, 56, 56)


def no_grad(function: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return function(*inputs)

    return run


def compiled(dtype: torch.dtype, goal: Goal) -> Iterator[Case]:
    """The same model: backend npu on the device, Inductor on the CPU device."""
    for name, model, x in models():
        if dtype != torch.float32 and model is chain:
            continue
        theirs = copy.deepcopy(model).to(dtype) if isinstance(model, nn.Module) else model
        mine = copy.deepcopy(theirs).npu() if isinstance(model, nn.Module) else model
        x = x.to(dtype)
        subject = no_grad(torch.compile(mine, backend="npu"), x.npu())
        baseline = no_grad(torch.compile(theirs), x)

        def check(subject: Any = subject, baseline: Any = baseline) -> None:
            torch.testing.assert_close(subject().cpu(), baseline(), atol=5e-2, rtol=5e-2)

        yield Case(f"compiled {dtype}", name, subject, baseline, goal, check, "inductor on cpu")


def decode() -> Iterator[Case]:
    """A token of a small decoder with caches: many little operators, which eager pays for one by one."""
    token, position = torch.tensor([3], device="npu"), torch.tensor([5], device="npu")
    eager, model = decoder(torch.float32), decoder(torch.float32)  # each writes caches of its own
    replayed = torch.compile(model, backend="npugraph_ex", dynamic=False)
    subject, baseline = no_grad(replayed, token, position), no_grad(eager, token, position)

    def check() -> None:
        torch.testing.assert_close(subject(), baseline(), atol=1e-3, rtol=1e-3)

    yield Case("captured", "decode step", subject, baseline, REPLAY, check, "eager")


class _Starting(nn.Module):
    def __init__(self, folder: str):
        super().__init__()
        import torchair

        self.body = Mlp(64, 128)
        self.cached = torchair.inference.cache_compile(self.run, cache_dir=folder)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def warm_start() -> Iterator[Case]:
    """The first call of a model: from the cache's file, and from nothing."""
    folder = tempfile.mkdtemp(prefix="softnpu-bench-")
    x = torch.randn(8, 64, device="npu")

    def start(clear: bool) -> None:
        torch._dynamo.reset()
        if clear:
            shutil.rmtree(folder, ignore_errors=True)
        _Starting(folder).npu().cached(x)

    warm, cold = functools.partial(start, False), functools.partial(start, True)
    yield Case("cache_compile", "warm start", warm, Versus(cold, WARM, once=True), against="cold")
    shutil.rmtree(folder, ignore_errors=True)
