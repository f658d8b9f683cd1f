"""Tokens in half precision: each is the best by float32's logits, but for what half precision itself moves them.

The tolerance of a step is twice the difference that transformers' own logits in bfloat16, on the CPU, have from those in
float32 there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from tests.clients.vllm_ascend.models import load


def check(
    path: Path,
    prompts: Sequence[list[int]],
    tokens: Sequence[list[int]],
    context: Callable[[Any], Any] = lambda model: nullcontext(),
) -> None:
    """Fails for a token that is no tie; `context` of a model is entered while it runs."""
    sequences = [[*prompt, *found] for prompt, found in zip(prompts, tokens, strict=True)]
    exact, rounded = (
        _logits(load(path, dtype), sequences, context) for dtype in (torch.float32, torch.bfloat16)
    )
    for prompt, found, wide, half in zip(prompts, tokens, exact, rounded, strict=True):
        for step, token in enumerate(found):
            place = len(prompt) + step - 1
            behind = float(wide[place].max() - wide[place, token])
            tolerance = 2 * float((wide[place] - half[place]).abs().max())
            assert behind <= tolerance, (
                f"token {step} of the prompt {prompt[:5]}...: {token} is {behind:.3f} behind the best; "
                f"half precision explains {tolerance:.3f}"
            )


def _logits(model, sequences, context):
    with torch.no_grad(), context(model):
        return [model(torch.tensor([ids]), use_cache=False).logits[0].float() for ids in sequences]
