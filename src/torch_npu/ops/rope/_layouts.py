"""Which shapes of cos and sin npu_rotary_mul takes for which layout of its input, chip by chip."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.rope._rotate import divisor

Table = dict[str, tuple[str, ...]]

#: layout of the input -> the shapes of cos and sin, "1" where they are broadcast, on chips that compile the operator
COMPILED: Table = {"BNSD": ("11SD",), "BSND": ("1S1D",), "SBND": ("S11D",)}

Sizes = dict[str, int]


def _readings(x: torch.Tensor, r: torch.Tensor, table: Table) -> Iterator[Sizes]:
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


def composed(x: torch.Tensor) -> bool:
    """Whether op-plugin computes the rotation with multiplications and an addition of ATen, each rounded: on the chips
    before A2, where 64 does not divide D (aclops/RotaryMulKernelNpu.cpp)."""
    return chips.current().family in ("910A", "310P") and x.shape[-1] % 64 != 0


def check_rotary(
    x: torch.Tensor, r1: torch.Tensor, mode: str, *, gradient: bool = False, matrix: bool = False
) -> None:
    """What the current chip takes for the operator, its gradient, or a rotation by a matrix."""
    family = chips.current().family
    size = x.shape[-1]
    if family == "A5":
        must.hold(size <= 1024, "self", "at most 1024 long in its last dimension", tuple(x.shape))
        _check_divisible(x, mode)
        _check_broadcast(x, r1)
    elif family in ("910A", "310P"):
        must.choice("rotary_mode", mode, ("half",))
        must.ndim("self", x, 4)
        _check_divisible(x, mode)
        _check_broadcast(x, r1)
        if composed(x):
            return
        fits = any(
            max(s["B"], s["N"]) <= 1000 and _heads(s) <= 1024 for s in _readings(x, r1, COMPILED)
        )
        _check_fits(fits, x, r1, COMPILED, "B and N up to 1000, B * N up to 1024")
    elif mode == "interleave":
        _check_divisible(x, mode)
        _check_broadcast(x, r1)
        _check_interleaved(x, r1, gradient)
    else:
        # rope_rotate_half_tiling.cpp and rope_half_grad_tiling.cpp of CANN have the same limit
        must.hold(size <= 896, "self", "at most 896 long in its last dimension", tuple(x.shape))
        _check_divisible(x, mode)
        _check_broadcast(x, r1)
        if not gradient:
            _check_halves(x, r1, matrix)


def _three(tensor: torch.Tensor) -> tuple[int, int, int]:
    """The sizes before the last one, as of a tensor of four dimensions: TND is 1TND."""
    first, second, third = (1, *tensor.shape[:-1])[-3:]
    return first, second, third


def _check_interleaved(x: torch.Tensor, r1: torch.Tensor, gradient: bool) -> None:
    """rope_interleaved_tiling.cpp: r has one dimension of its own at most; its gradient also limits B * N."""
    have, given = _three(x), _three(r1)
    places = [i for i in (0, 1, 2) if all(given[j] == 1 for j in (0, 1, 2) if j != i)]
    own = [i for i in places if have[i] == given[i]]
    expected = f"of a shape documented for 'self' {tuple(x.shape)}: one size of it, and ones"
    must.hold(own, "r1", expected, tuple(r1.shape))
    if gradient:
        heads = min(math.prod(have) // have[i] if have[i] else 0 for i in own)
        must.hold(heads < 1000, "self", "of B * N below 1000", tuple(x.shape))


def _check_halves(x: torch.Tensor, r1: torch.Tensor, matrix: bool) -> None:
    """rope_rotate_half_tiling.cpp: the ways to broadcast that it knows, and where it asks for another operator."""
    have, given = _three(x), _three(r1)
    same = [bool(a == b) for a, b in zip(have, given, strict=True)]
    lone = same == [False, True, True] and 1 not in have[1:]
    single = given == (1, 1, 1) and 1 not in have
    expected = f"of a shape documented for 'self' {tuple(x.shape)}"
    must.hold(not lone and not single, "r1", expected, tuple(r1.shape))
    if matrix or same[0] or same[1] or given == (1, 1, 1):
        return
    heads, length, size = have[0] * have[1], have[2], x.shape[-1]
    aligned = size // 2 * x.element_size() % 32 == 0
    lines = -(-length // chips.current().vector_cores)
    slow = heads > 8 * length if aligned else 2 * heads > lines and size < 80
    limit = "B * N up to 8 * S" if aligned else f"2 * B * N up to {lines}, or 80 long"
    must.hold(not slow, "self", f"of {limit} in the layout BNSD", tuple(x.shape))


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


def _check_fits(fits: bool, x: torch.Tensor, r1: torch.Tensor, table: Table, limit: str) -> None:
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
