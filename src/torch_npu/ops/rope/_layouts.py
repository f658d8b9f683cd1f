"""Which shapes of cos and sin npu_rotary_mul takes for which layout of its input, chip by chip."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.rope._rotate import divisor

#: layout of the input -> the shapes of cos and sin, "1" where they are broadcast
HALF = {
    "BNSD": ("11SD", "B1SD", "BNSD"),
    "BSND": ("1S1D", "BS1D", "BSND"),
    "SBND": ("S11D", "SB1D", "SBND"),
    "TND": ("T1D", "TND", "11D"),
}
INTERLEAVE = {
    "BNSD": ("11SD",),
    "BSND": ("1S1D",),
    "SBND": ("S11D",),
    "TND": ("T1D", "TND", "11D"),
}
COMPILED = {"BNSD": ("11SD",), "BSND": ("1S1D",), "SBND": ("S11D",)}

Sizes = dict[str, int]


def _readings(
    x: torch.Tensor, r: torch.Tensor, table: dict[str, tuple[str, ...]]
) -> Iterator[Sizes]:
    """The sizes by letter for every layout under which r has a documented shape."""
    have, given = tuple(x.shape), tuple(r.shape)
    for layout, patterns in table.items():
        if len(layout) != len(have):
            continue
        for pattern in patterns:
            wanted = tuple(1 if p == "1" else n for p, n in zip(pattern, have, strict=True))
            if given == wanted:
                yield dict(zip(layout, have, strict=True))
                break


def _heads(sizes: Sizes) -> int:
    return sizes.get("B", 1) * sizes["N"]


def check_rotary(x: torch.Tensor, r1: torch.Tensor, mode: str, gradient: bool) -> None:
    """What the current chip takes; `gradient` tells whether cos or sin needs one."""
    family = chips.current().family
    size = x.shape[-1]
    if family == "A5":
        must.hold(size <= 1024, "self", "at most 1024 long in its last dimension", tuple(x.shape))
        _check_divisible(x, mode)
        _check_broadcast(x, r1)
    elif family in ("910A", "310P"):
        must.choice("rotary_mode", mode, ("half",))
        must.ndim("self", x, 4)
        must.hold(
            size == 128, "self", "128 long in its last dimension on this chip", tuple(x.shape)
        )
        fits = any(
            max(s["B"], s["N"]) <= 1000 and _heads(s) <= 1024 for s in _readings(x, r1, COMPILED)
        )
        _check_fits(fits, x, r1, COMPILED, "B and N up to 1000, B * N up to 1024")
    else:
        must.hold(size < 896, "self", "less than 896 long in its last dimension", tuple(x.shape))
        _check_divisible(x, mode)
        if mode == "interleave":
            fits = any(_heads(s) < 1000 for s in _readings(x, r1, INTERLEAVE))
            _check_fits(fits, x, r1, INTERLEAVE, "B * N below 1000")
            return

        def readings() -> Iterator[Sizes]:
            small = _readings(x, r1, HALF)
            return (s for s in small if s.get("B", 1) < 1000 and s["N"] < 1000)

        _check_fits(any(True for _ in readings()), x, r1, HALF, "B and N below 1000")
        if gradient:
            must.hold(
                any(_heads(s) <= 1024 for s in readings()),
                "self",
                "of B * N up to 1024 where 'r1' or 'r2' needs a gradient",
                tuple(x.shape),
            )


def _check_divisible(x: torch.Tensor, mode: str) -> None:
    multiple = divisor(mode)
    must.hold(
        x.shape[-1] % multiple == 0,
        "self",
        f"a multiple of {multiple} long in its last dimension in the mode {mode!r}",
        tuple(x.shape),
    )


def _check_broadcast(x: torch.Tensor, r1: torch.Tensor) -> None:
    pairs = zip(r1.shape[:-1], x.shape[:-1], strict=True)
    must.hold(
        r1.shape[-1] == x.shape[-1] and all(a in (1, b) for a, b in pairs),
        "r1",
        f"of a shape that broadcasts to 'self' {tuple(x.shape)}",
        tuple(r1.shape),
    )


def _check_fits(
    fits: bool, x: torch.Tensor, r1: torch.Tensor, table: dict[str, tuple[str, ...]], limit: str
) -> None:
    if fits:
        return
    options = "; ".join(
        f"{layout}: {', '.join(patterns)}"
        for layout, patterns in table.items()
        if len(layout) == x.dim()
    )
    must.hold(
        False,
        "r1",
        f"of a shape documented for 'self' {tuple(x.shape)} ({options}; with {limit})",
        tuple(r1.shape),
    )
