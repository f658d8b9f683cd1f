"""A Llama-style decoder of 100M parameters: a training step, and greedy decoding of 64 tokens.

The same PyTorch program runs on the npu and on the CPU device; `operators` replaces three of its formulas by the
operators that NPU programs call. CPU eager in bf16 takes minutes, so a part of it is measured once.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import torch_npu
from benchmarks import formulas, limits
from benchmarks.harness import Case, Goal, Versus
from benchmarks.models import keep_angles

GROUP = "Llama, 100M parameters, bfloat16"
FASTER, FP32, STILL = Goal(1 / 20), Goal(1.2), Goal(1.0)
LAYERS, HIDDEN, HEADS, INNER, WORDS, LENGTH = 12, 768, 12, 2048, 8192, 128
BATCH, TOKENS, DECODED = 2, 64, 64
PARTS = 2 * BATCH  # of a training step, one of which the CPU device does in bf16


class Layer(nn.Module):
    def __init__(self, operators: bool) -> None:
        super().__init__()
        self.operators = operators
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.before = nn.Parameter(torch.ones(HIDDEN))
        self.between = nn.Parameter(torch.ones(HIDDEN))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, HIDDEN // HEADS))

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.operators:
            return torch_npu.npu_rms_norm(x, weight)[0]
        return F.rms_norm(x, (HIDDEN,), weight, 1e-6)

    def turn(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return (torch_npu.npu_rotary_mul if self.operators else formulas.rotary)(x, *rope)

    def forward(self, x: torch.Tensor, rope: Any, cache: Any = None) -> torch.Tensor:
        """`cache` is (position, mask) in decoding: the layer keeps keys and values."""
        batch, length, _ = x.shape
        split = self.qkv(self.norm(x, self.before)).view(batch, length, 3, HEADS, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        q, k = self.turn(q, rope), self.turn(k, rope)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            position, mask = cache
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, HIDDEN))
        gated = self.up(self.norm(x, self.between))
        active = (torch_npu.npu_swiglu if self.operators else formulas.swiglu)(gated)
        return x + self.down(active)


class Llama(nn.Module):
    """`forward` takes whole sequences; `step` one token, with caches that the model keeps."""

    def __init__(self, operators: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Layer(operators) for _ in range(LAYERS))
        self.last = nn.Parameter(torch.ones(HIDDEN))
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        keep_angles(self, LENGTH, HIDDEN // HEADS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, length = self.embed(tokens), tokens.shape[1]
        rope = self.cos[:, :, :length], self.sin[:, :, :length]
        for layer in self.layers:
            x = layer(x, rope)
        return self._logits(x)

    def step(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The next token after `token`, both of shape (1,)."""
        x = self.embed(token)[None]
        rope = self.cos.index_select(2, position), self.sin.index_select(2, position)
        mask = (torch.arange(LENGTH, device=x.device) <= position).view(1, 1, 1, -1)
        for layer in self.layers:
            x = layer(x, rope, (position, mask))
        return self._logits(x)[0].argmax(-1)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers[0].norm(x, self.last))


def llama(device: str, dtype: torch.dtype, operators: bool = False) -> Llama:
    torch.manual_seed(0)
    return Llama(operators).to(device, dtype)


def cases() -> Iterator[Case]:
    yield from training()
    yield from decoding()


# --- training -------------------------------------------------------------------------------------------


class Training:
    """A model with its optimizer and a batch; a call is a step."""

    def __init__(self, device: str, dtype: torch.dtype, operators: bool = False) -> None:
        self.model = llama(device, dtype, operators)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(1)
        words = torch.randint(0, WORDS, (BATCH, TOKENS + 1), generator=generator)
        self.words = words.to(device)

    def gradients(self, batch: int = BATCH, tokens: int = TOKENS) -> torch.Tensor:
        words = self.words[:batch, : tokens + 1]
        logits = self.model(words[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits.float(), words[:, 1:].reshape(-1))
        loss.backward()
        return loss.detach()

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.gradients()
        self.optimizer.step()
        return loss

    def by_parts(self) -> float:
        """Seconds of a step, from half a sequence of the batch and a whole update."""
        start = time.perf_counter()
        self.gradients(1, TOKENS // 2)
        middle = time.perf_counter()
        self.optimizer.step()
        return PARTS * (middle - start) + time.perf_counter() - middle


def training() -> Iterator[Case]:
    made = functools.cache(Training)
    mine = lambda: made("npu", torch.bfloat16)()  # noqa: E731

    def check() -> None:
        got, want = mine().item(), made("cpu", torch.float32)().item()
        assert abs(got - want) < 0.05 * want, f"the loss is {got}, in fp32 on the cpu {want}"

    label = f"bf16, gradients of 1/{PARTS} of the batch, times {PARTS}"
    part = lambda: Training("cpu", torch.bfloat16).by_parts()  # noqa: E731
    slow = Versus(part, FASTER, label, once=True, reads=True)
    weights = (12 * HIDDEN**2 // 3 + 3 * HIDDEN * INNER) * LAYERS + HIDDEN * WORDS
    others = {
        "cpu fp32": Versus(lambda: made("cpu", torch.float32)(), FP32),
        "limit": limits.blas(6 * weights * BATCH * TOKENS),
    }
    yield Case(GROUP, f"training step, {BATCH}x{TOKENS}", mine, slow, None, check, others=others)
    fused = lambda: made("npu", torch.bfloat16, True)()  # noqa: E731
    yield Case(
        GROUP, f"training step, {BATCH}x{TOKENS}, NPU operators", fused, mine, against="npu, plain"
    )


# --- decoding -------------------------------------------------------------------------------------------


class Decoding:
    """A model without gradients; a call decodes 64 tokens, each by `step`."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.model = llama(device, dtype).eval().requires_grad_(False)
        self.token = torch.tensor([3]).to(device)
        self.position = torch.tensor([0]).to(device)
        self.step: Callable[[], torch.Tensor] = lambda: self.model.step(self.token, self.position)

    def __call__(self, instead: Sequence[int] = ()) -> list[int]:
        """The tokens; each step goes on from the last one, or from one of `instead`."""
        self.token.fill_(3)
        found = []
        for place in range(DECODED):
            self.position.fill_(place)
            chosen = self.step()
            found.append(int(chosen.item()))
            self.token.copy_(chosen) if not instead else self.token.fill_(instead[place])
        return found


def _captured() -> Decoding:
    made = Decoding("npu", torch.bfloat16)
    made.step()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        chosen = made.model.step(made.token, made.position)

    def replay() -> torch.Tensor:
        graph.replay()
        return chosen

    made.step = replay
    return made


def _compiled() -> Decoding:
    made = Decoding("npu", torch.bfloat16)
    step = torch.compile(made.model.step, backend="npu", dynamic=False)
    made.step = lambda: step(made.token, made.position)
    return made


def decoding() -> Iterator[Case]:
    eager = functools.cache(lambda: Decoding("npu", torch.bfloat16))
    single = functools.cache(lambda: Decoding("cpu", torch.float32))
    slow = lambda: Decoding("cpu", torch.bfloat16)()  # noqa: E731

    def check(made: Callable[[], Decoding], least: int) -> None:
        """As eager does it, after the same tokens; roundings may choose another word where two are close."""
        want = eager()()
        same = sum(a == b for a, b in zip(made()(want), want, strict=True))
        assert same >= least, f"only {same} tokens are those of eager"

    read = limits.reading(
        lambda: eager().model.parameters(), label="reading all weights", times=DECODED
    )
    name = f"greedy decode of {DECODED} tokens"
    fp32 = Versus(lambda: single()())
    yield Case(
        GROUP, name, lambda: eager()(), Versus(slow, FASTER, "bf16", once=True),
        others={"cpu fp32": fp32, "limit": read},
    )  # fmt: skip
    for how, make, least in (
        ("NPUGraph", _captured, DECODED),
        ("TorchAir", _compiled, DECODED * 3 // 4),
    ):
        made = functools.cache(make)
        yield Case(
            GROUP, f"{name}, {how}", lambda made=made: made()(), lambda: eager()(), STILL,
            functools.partial(check, made, least), "npu eager", {"limit": read},
        )  # fmt: skip
