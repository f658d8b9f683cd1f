"""What every operator test shares: inputs on the device, the accuracy rule, the relaxed mode for fp64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from softnpu import settings


def make(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    low: float = -1,
    high: float = 1,
    requires_grad: bool = False,
    device: str = "npu",
    seed: int | None = None,
) -> torch.Tensor:
    """A random tensor on the device under test: uniform in [low, high), integers as such."""
    seed = sum(shape) + len(shape) if seed is None else seed
    # What is made under a mode (fake tensors) belongs to it.
    random = _random if torch._C._len_torch_dispatch_stack() == 0 else _random.__wrapped__
    made = random(shape, dtype, low, high, seed).to(device, copy=True)
    return made.requires_grad_(requires_grad)


@functools.lru_cache(maxsize=64)  # tests ask for the same large weights again and again
@torch.inference_mode(False)
def _random(
    shape: tuple[int, ...], dtype: torch.dtype, low: float, high: float, seed: int
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(int(low), int(high), shape, generator=generator).to(dtype)
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)


def max_error(actual: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest absolute difference, in fp64; NaN and Inf must stand in the same places."""
    a, r = actual.detach().cpu().double(), reference.detach().cpu().double()
    assert a.shape == r.shape, f"shape {tuple(a.shape)} where the reference has {tuple(r.shape)}"
    assert torch.equal(a.isnan(), r.isnan()), "NaN in other places than the reference"
    finite = a.isfinite() & r.isfinite()
    assert torch.equal(a[~finite & ~a.isnan()], r[~finite & ~r.isnan()]), "Inf in other places"
    return (a - r)[finite].abs().max().item() if finite.any() else 0.0


def assert_accurate(
    actual: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor, slack: float = 1e-6
) -> None:
    """The accuracy rule: against an fp64 `reference`, at most twice the error of `plain`.

    `plain` is the same formula in plain PyTorch in the tested dtype; `slack` covers the case where it
    happens to be exact.
    """
    mine, theirs = max_error(actual, reference), max_error(plain, reference)
    assert mine <= 2 * theirs + slack, f"error {mine:.3g}, plain PyTorch has {theirs:.3g}"


def relaxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a test with documented constraints off, e.g. for gradcheck in fp64."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with settings.override(strict=False):
            return function(*args, **kwargs)

    return run


def gradcheck(function: Callable[..., Any], *inputs: Any, **options: Any) -> None:
    """fp64 gradcheck on the device with documented constraints off (pages rarely allow fp64)."""
    with settings.override(strict=False):
        assert torch.autograd.gradcheck(function, inputs, **options)


def assert_same(got: list[Any], expected: list[Any]) -> None:
    """Two flat outcomes of a call: tensors close, everything else equal."""
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            assert one == other
