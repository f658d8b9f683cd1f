"""An operator's `native` against its `kernel`: same dtypes, shapes, strides and integers, floats as accurate.

`native` runs on plain CPU tensors here, with `kernel` out of reach, so that falling back to it is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from torch_npu.ops._operator import Operator

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

#: around one, four and many vectors of eight
WIDTHS = (1, 2, 7, 8, 9, 16, 31, 32, 33, 66, 257)

#: how far two correct results may be apart: a few units of the last place of the type
SLACK = {torch.float32: 4e-6, torch.bfloat16: 2**-7, torch.float16: 2**-9}


def views(x: torch.Tensor) -> list[torch.Tensor]:
    """The same values with other strides: permuted, cut out of a larger tensor, every second element."""
    found = [x]
    if x.dim() > 1:
        found.append(x.transpose(0, -1).contiguous().transpose(0, -1))
    padded = torch.zeros(*(s + 3 for s in x.shape), dtype=x.dtype)
    cut = padded[tuple(slice(1, s + 1) for s in x.shape)]
    found.append(cut.copy_(x))
    steps = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)[..., ::2]
    found.append(steps.copy_(x))
    return found


def run_native(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`native`, which must not leave the work to `kernel`."""
    found = operator.as_function("native")(*args, **kwargs)
    assert found is not NotImplemented, f"native of {operator.name} left the work to kernel"
    return found


def compare(
    operator: Operator, *args: Any, strides: bool = True, exact: bool = True, **kwargs: Any
) -> list[Any]:
    """Checks `native` against `kernel` and, for `exact`, against `kernel` in float64; returns the results."""
    copies = tree_map_only(torch.Tensor, _copy, (args, kwargs))
    wide = tree_map_only(torch.Tensor, _double, (args, kwargs))
    native = tree_flatten(run_native(operator, *copies))[0]
    formula = operator.as_function("kernel")
    kernel = tree_flatten(formula(*args, **kwargs))[0]
    truth = tree_flatten(formula(*wide[0], **wide[1]))[0] if exact else kernel
    for got, want, right in zip(native, kernel, truth, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if strides and got.numel():
            assert got.stride() == want.stride()
        if got.is_floating_point():
            assert_near(got, want)
            if exact:
                _accurate(got, want, right)
        else:
            assert torch.equal(got, want)
    return native


def _copy(t: torch.Tensor) -> torch.Tensor:
    fresh = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    return t if 0 in t.stride() else fresh.copy_(t)


def _double(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.is_floating_point() else t


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for a few units of the last place; NaN and infinity in the same places."""
    slack = SLACK[got.dtype]
    scale = want.float().nan_to_num(posinf=0, neginf=0).abs().max().item() if want.numel() else 0.0
    atol = max(scale, 1e-30) * (2e-6 if got.dtype == torch.float32 else slack / 8)
    torch.testing.assert_close(got, want, rtol=slack, atol=atol, equal_nan=True)


def _accurate(got: torch.Tensor, want: torch.Tensor, right: torch.Tensor) -> None:
    """The largest error is at most twice that of the Python kernel, roundings of the largest value aside."""
    finite = right.isfinite() & want.isfinite()
    if not finite.any():
        return
    right = right[finite].double()
    error, allowed = ((t[finite].double() - right).abs().max() for t in (got, want))
    roundings = 4 if got.dtype == torch.float32 else 1  # sums in another order
    floor = right.abs().max() * torch.finfo(got.dtype).eps * roundings
    assert error <= 2 * allowed + floor, f"error {error:.3g}, the Python kernel's {allowed:.3g}"


def special(x: torch.Tensor) -> torch.Tensor:
    """x with zeros, infinities, NaN and large values among its elements."""
    flat = x.reshape(-1).clone()
    odd = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e4, -3e4, 90.0, -90.0, 1e-5)
    for index, value in enumerate(odd[: flat.numel()]):
        flat[index * 3 % flat.numel()] = value
    return flat.view(x.shape)


Make = Callable[..., torch.Tensor]


def randn(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    seed = torch.Generator().manual_seed(sum(shape) + 7)
    return (torch.randn(*shape, generator=seed) * scale).to(dtype)
