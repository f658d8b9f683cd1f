"""Tokens in half precision: each is the best by float32's logits, but for what half precision itself moves them.

The tolerance of a step is twice the difference that transformers' own logits in bfloat16, on the CPU, have from those in
float32 there. Where a model routes tokens to experts, two experts may be tied as well, and the one that half precision takes
moves the logits much further than its rounding. So the logits in float32 are computed with other routings too: the routers'
input is moved by twice as much as bfloat16 moves it, many times, at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from tests.clients.vllm_ascend.models import load

ROUTINGS = 32


def check(
    path: Path,
    prompts: Sequence[list[int]],
    tokens: Sequence[list[int]],
    context: Callable[[Any], Any] = lambda model: nullcontext(),
) -> None:
    """Fails for a token that is no tie; `context` of a model is entered while it runs."""
    sequences = [[*prompt, *found] for prompt, found in zip(prompts, tokens, strict=True)]
    wide, half = load(path), load(path, torch.bfloat16)
    seen_wide, seen_half = _watch_routers(wide), _watch_routers(half)
    exact, rounded = _logits(wide, sequences, context), _logits(half, sequences, context)
    references = [exact]
    if seen_wide:
        moved = [2 * float((a - b).std()) for a, b in zip(seen_wide, seen_half, strict=True)]
        torch.manual_seed(0)
        for _ in range(ROUTINGS):
            with _Moved(wide, iter(moved)):
                references.append(_logits(wide, sequences, context))
    for i, (prompt, found) in enumerate(zip(prompts, tokens, strict=True)):
        for step, token in enumerate(found):
            place = len(prompt) + step - 1
            behind = min(float(one[i][place].max() - one[i][place, token]) for one in references)
            tolerance = 2 * float((exact[i][place] - rounded[i][place]).abs().max())
            assert behind <= tolerance, (
                f"token {step} of the prompt {prompt[:5]}...: {token} is {behind:.3f} behind the best; "
                f"half precision explains {tolerance:.3f}"
            )


def _logits(model, sequences, context):
    with torch.no_grad(), context(model):
        return [model(torch.tensor([ids]), use_cache=False).logits[0].float() for ids in sequences]


def _routers(model):
    return [module for name, module in model.named_modules() if name.endswith(".mlp.gate")]


def _watch_routers(model) -> list[torch.Tensor]:
    """What enters the routers, call by call, as the model runs."""
    seen: list[torch.Tensor] = []
    for router in _routers(model):
        router.register_forward_pre_hook(lambda _, args: seen.append(args[0].float()))
    return seen


class _Moved:
    """Noise on what enters the routers; `sizes` has its standard deviation, call by call."""

    def __init__(self, model, sizes: Iterator[float]):
        self.hooks = [
            router.register_forward_pre_hook(
                lambda _, args: (args[0] + next(sizes) * torch.randn_like(args[0]), *args[1:])
            )
            for router in _routers(model)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()
