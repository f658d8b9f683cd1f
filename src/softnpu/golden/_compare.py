"""How far two tensors are apart: bits, absolute and relative error, ULPs, cosine, share beyond tolerance, NaN and Inf."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from softnpu.golden._files import dtype_name

_WORST = 8
#: dtype -> tolerance (relative and absolute), which is also the share of elements that may lie beyond it: the rule
#: by which Ascend accepts operators (one ten-thousandth in fp32, one thousandth in fp16)
_BY_DTYPE = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 1e-3,
    torch.bfloat16: 4e-3,
    torch.complex64: 1e-4,
    torch.complex128: 1e-7,
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Tolerance:
    """None: by dtype. An element is beyond tolerance where |a - b| > atol + rtol * |b|, b being the recorded one."""

    rtol: float | None = None
    atol: float | None = None
    share: float | None = None
    bitwise: bool = False

    def of(self, dtype: torch.dtype) -> tuple[float, float, float]:
        exact = not (dtype.is_floating_point or dtype.is_complex)
        default = 0.0 if exact else _BY_DTYPE.get(dtype, 0.125)  # the rest are 8-bit formats
        rtol, atol, share = (
            default if x is None else x for x in (self.rtol, self.atol, self.share)
        )
        return (0.0, 0.0, share) if exact else (rtol, atol, share)


@dataclass
class Difference:
    """`here` against `golden`. Errors are over elements that are finite in both; `max_rel` where golden is not 0."""

    dtype: str
    shape: list[int]
    bitwise: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    cosine: float = 1.0
    share: float = 0.0
    nan: int = 0
    inf: int = 0
    nan_at: list[list[int]] = field(default_factory=list)
    inf_at: list[list[int]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)
    mismatch: str = ""
    within: bool = True
    allowed: tuple[float, float, float] = (0.0, 0.0, 0.0)
    picture: list[list[float]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        found.pop("picture")
        return _json(found)


def _json(value: Any) -> Any:
    """JSON has no Infinity and no NaN: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _json(v) for k, v in value.items()}
    return [_json(v) for v in value] if isinstance(value, (list, tuple)) else value


def compare(
    here: torch.Tensor,
    golden: torch.Tensor,
    tolerance: Tolerance | None = None,
    picture: bool = False,
) -> Difference:
    """Two tensors of one shape; of two dtypes they are compared as the coarser one."""
    tolerance = tolerance or Tolerance()
    a, b = here.detach().cpu(), golden.detach().cpu()
    label = dtype_name(b.dtype) + (f" (here {dtype_name(a.dtype)})" if a.dtype != b.dtype else "")
    if a.shape != b.shape:
        text = f"shape {tuple(a.shape)} here, {tuple(b.shape)} recorded"
        return Difference(label, list(b.shape), False, mismatch=text, within=False, share=1.0)
    same = a.dtype == b.dtype and _bits_equal(a, b)
    dtype = coarser(a.dtype, b.dtype)
    found = Difference(label, list(b.shape), same, allowed=tolerance.of(dtype))
    if same or not b.numel():
        return found
    _measure(found, a.to(dtype), b.to(dtype), picture)
    rtol, atol, share = found.allowed
    found.within = not (found.nan or found.inf) and found.share <= share and not tolerance.bitwise
    return found


def coarser(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    def bits(dtype: torch.dtype) -> tuple[bool, float, int]:
        if dtype.is_floating_point:
            return (False, torch.finfo(dtype).eps, 0)
        return (True, 0.0, dtype.itemsize)

    return a if a == b else max(a, b, key=lambda d: bits(d)[1])


def _bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    flat = [
        t.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)
    ]
    return torch.equal(*flat)


def _measure(found: Difference, a: torch.Tensor, b: torch.Tensor, picture: bool) -> None:
    shape = a.shape
    steps = _ulps(a, b)
    x, y = _wide(a), _wide(b)
    both = x.isfinite() & y.isfinite()
    nan = x.isnan() != y.isnan()
    inf = ~nan & ~both & ~x.isnan() & (x != y)
    found.nan, found.inf = int(nan.sum()), int(inf.sum())
    found.nan_at, found.inf_at = _places(nan, shape), _places(inf, shape)
    zero = torch.zeros((), dtype=torch.float64)
    error = torch.where(both, (x - y).abs().double(), zero)
    size = torch.where(both, y.abs().double(), zero)
    relative = torch.where(both & (size > 0), error / size.where(size > 0, zero + 1), zero)
    steps = torch.where(both, steps, zero)
    found.max_abs, found.max_rel = float(error.max()), float(relative.max())
    found.max_ulp = float(steps.max())
    found.cosine = _cosine(x[both], y[both])
    rtol, atol, _ = found.allowed
    bad = (error > atol + rtol * size) | nan | inf
    found.share = float(bad.sum()) / bad.numel()
    rank = torch.where(nan | inf, torch.full_like(error, float("inf")), error)
    count = min(_WORST, int((rank > 0).sum()))
    values, order = rank.topk(count)
    for where, value in zip(order.tolist(), values.tolist()):
        found.worst.append(
            {
                "index": _index(where, shape),
                "golden": _number(b.reshape(-1)[where]),
                "here": _number(a.reshape(-1)[where]),
                "abs": value,
                "rel": float(relative[where]),
                "ulp": float(steps[where]),
            }
        )
    if picture:
        found.picture = _picture(rank.reshape(shape))


def _wide(t: torch.Tensor) -> torch.Tensor:
    t = t.reshape(-1)
    return t.to(torch.complex128) if t.is_complex() else t.double()


def _cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    if x.is_complex():
        x, y = torch.view_as_real(x).reshape(-1), torch.view_as_real(y).reshape(-1)
    lengths = x.norm(), y.norm()
    if not lengths[0] or not lengths[1]:
        return 1.0 if lengths[0] == lengths[1] else 0.0
    # Divided first: the product of two lengths may overflow.
    return min(1.0, float((x / lengths[0]).dot(y / lengths[1])))


def _ulps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many numbers of the dtype lie between them; of integers the difference; of complex numbers the larger part."""
    if a.is_complex():
        parts = [torch.view_as_real(t).reshape(-1) for t in (a, b)]
        return _ulps(*parts).reshape(-1, 2).max(1).values
    if not a.is_floating_point():
        return (a.reshape(-1).double() - b.reshape(-1).double()).abs()

    def ordered(t: torch.Tensor) -> torch.Tensor:
        bits = t.contiguous().reshape(-1).view(_INTEGERS[t.element_size()]).long()
        lowest = -(2 ** (8 * t.element_size() - 1))
        return torch.where(bits < 0, lowest - bits, bits)

    x, y = ordered(a), ordered(b)
    # Exact where a double would not be; numbers of two signs may lie further apart than an int64 can say.
    apart = x.double().abs() + y.double().abs()
    return torch.where((x < 0) == (y < 0), (x - y).abs().double(), apart)


def _places(mask: torch.Tensor, shape: torch.Size) -> list[list[int]]:
    return [_index(i, shape) for i in mask.nonzero().reshape(-1)[:_WORST].tolist()]


def _index(flat: int, shape: torch.Size) -> list[int]:
    found: list[int] = []
    for length in reversed(shape):
        flat, at = divmod(flat, length)
        found.append(at)
    return found[::-1]


def _number(value: torch.Tensor) -> float | int | str:
    number = value.item()
    return str(number) if isinstance(number, complex) else number


def _picture(error: torch.Tensor, rows: int = 24, columns: int = 64) -> list[list[float]]:
    """The largest error of each part of the tensor, as a map of at most rows x columns parts."""
    flat = error.reshape(-1, error.shape[-1]) if error.dim() else error.reshape(1, 1)
    high, wide = min(rows, flat.shape[0]), min(columns, flat.shape[1])
    parts = [part.amax(0) for part in flat.tensor_split(high, 0)]
    return [[float(cell.max()) for cell in row.tensor_split(wide)] for row in parts]
