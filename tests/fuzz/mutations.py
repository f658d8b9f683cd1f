"""Ways to spoil the arguments of a call. A mutation is (where, kind, parameter): plain values, so that it can be printed.

`where` is a path into [args, kwargs], such as "args.0" or "kwargs.scale.2". A mutation that does not apply to what it
finds (another one may have changed it) leaves it as it is.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

from tests.fuzz import kinds

DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
_NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
SHAPES = ("grow", "shrink", "zero", "one", "double", "drop", "add", "swap")
STRIDES = ("transposed", "expanded", "stepped", "overlapping", "offset", "reversed dims")
STORAGES = ("released", "cut")
DEVICES = ("cpu", "npu:1", "meta")
VALUES = ("nan", "inf", "-inf", "zero", "most", "least", "minus one", "large", "random")
#: sizes beyond 62 bits make PyTorch's boxed calls fail with a message of its own
NUMBERS = (0, 1, -1, 2, 3, 7, 16, 128, 255, -7, 2**31, 2**31 - 1, 2**62 - 1, -(2**62), 2**40)
FLOATS = (0.0, -1.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e38, 1e-45, 0.5)
TEXTS = (
    "",
    "unknown",
    "BSH",
    "BNSD",
    "TND",
    "none",
    "max",
    "\u00e4",
    "x" * 100,
    "%s%n{}{0}",
    "BSH\0",
    "\ud800",
)


class Mutation(NamedTuple):
    where: str
    kind: str
    parameter: Any = None


def places(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every argument, and what lists of arguments hold, by path."""
    found = []
    if isinstance(value, dict):
        for key, one in value.items():
            found += [(f"{path}.{key}".strip("."), one), *places(one, f"{path}.{key}".strip("."))]
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value[:8]):
            found += [(f"{path}.{index}", one), *places(one, f"{path}.{index}")]
    return found


def choose(chance: random.Random, arguments: dict[str, Any]) -> Mutation | None:
    """One mutation for the arguments as they are."""
    found = [p for p in places(arguments) if "." in p[0]]
    if not found:
        return None
    where, value = chance.choice(found)
    if isinstance(value, torch.Tensor):
        kind = chance.choice(
            (
                *("dtype", "shape", "shape", "stride", "stride", "device", "values", "values"),
                *("values", "alias", "alias", "none", "storage", "kind"),
            )
        )
        parameter: Any = None
        if kind == "dtype":
            parameter = chance.choice(list(_NAMED))
        elif kind == "shape":
            parameter = (chance.choice(SHAPES), chance.randrange(max(value.dim(), 1)))
        elif kind == "stride":
            parameter = (chance.choice(STRIDES), chance.randrange(max(value.dim(), 1)))
        elif kind == "device":
            parameter = chance.choice(DEVICES)
        elif kind == "storage":
            parameter = chance.choice(STORAGES)
        elif kind == "kind":
            parameter = chance.choice(list(kinds.KINDS))
        elif kind == "values":
            parameter = (chance.choice(VALUES), chance.randrange(1000))
        elif kind == "alias":
            others = [
                path for path, one in found if isinstance(one, torch.Tensor) and path != where
            ]
            if not others:
                return None
            parameter = (chance.choice(others), chance.choice(("same", "view", "shifted")))
        return Mutation(where, kind, parameter)
    if isinstance(value, (list, tuple)):
        return Mutation(
            where, "list", chance.choice(("empty", "drop", "extend", "none", "reverse"))
        )
    return Mutation(where, "value", _plain(chance, value))


def _plain(chance: random.Random, value: Any) -> Any:
    if chance.random() < 0.15:
        return chance.choice((None, 0, 1.5, "unknown", True, [], [0]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((*NUMBERS, value + 1, value - 1, -value))
    if isinstance(value, float):
        return chance.choice((*FLOATS, -value, value * 2))
    if isinstance(value, str):
        return chance.choice((*TEXTS, value.lower(), value[::-1]))
    return chance.choice((None, 0, 1, -1, 77, 2**31, 1.0, True, "unknown"))  # dtypes and the like


def apply(arguments: dict[str, Any], mutation: Mutation, device: str = "npu") -> None:
    """Changes the arguments in place; those of `device` may lose memory."""
    *path, last = mutation.where.split(".")
    holder: Any = arguments
    for part in path:
        holder = _step(holder, part)
    key: Any = last if isinstance(holder, dict) else int(last) if isinstance(holder, list) else None
    if (
        key is None
        or (isinstance(holder, list) and key >= len(holder))
        or (isinstance(holder, dict) and key not in holder)
    ):
        return
    holder[key] = _mutated(holder[key], mutation, arguments, device)


def _step(holder: Any, part: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(part)
    if isinstance(holder, list) and int(part) < len(holder):
        return holder[int(part)]
    return None


def _mutated(value: Any, mutation: Mutation, arguments: dict[str, Any], device: str) -> Any:
    kind, parameter = mutation.kind, mutation.parameter
    if kind == "value":
        return parameter
    if kind == "list" and isinstance(value, list):
        changes = {
            "empty": [],
            "drop": value[:-1],
            "extend": value + value[-1:],
            "reverse": value[::-1],
        }
        return changes.get(parameter)
    if not isinstance(value, torch.Tensor):
        return value
    if kind == "none":
        return None
    if kind == "dtype":
        return value.detach().to(_NAMED[parameter])
    if kind == "device":
        return value.detach().to(parameter)
    if kind == "values":
        return _values(value, *parameter)
    if kind == "alias":
        return _alias(value, arguments, *parameter)
    value = value.detach()
    if kind == "kind":
        return kinds.KINDS[parameter](value)
    if kind == "storage":
        return _storage(value, parameter, device)
    return _shape(value, *parameter) if kind == "shape" else _stride(value, *parameter)


def _shape(x: torch.Tensor, how: str, dim: int) -> torch.Tensor:
    """Another shape with the values of the first one, repeated where there are more."""
    shape = list(x.shape)
    if how == "add":
        return x.unsqueeze(min(dim, x.dim())).contiguous()
    if not shape:
        return x
    dim %= len(shape)
    if how == "swap":
        return x.transpose(dim, 0).contiguous()
    if how == "drop":
        return x.select(dim, 0).contiguous() if shape[dim] else x.flatten()
    size = {
        "grow": shape[dim] + 1,
        "shrink": max(shape[dim] - 1, 0),
        "zero": 0,
        "one": 1,
        "double": 2 * shape[dim],
    }
    if size[how] <= shape[dim]:
        return x.narrow(dim, 0, size[how]).contiguous()
    if shape[dim] == 0:
        shape[dim] = size[how]
        return x.new_zeros(shape)
    return torch.cat([x, x], dim).narrow(dim, 0, size[how]).contiguous()


def _stride(x: torch.Tensor, how: str, dim: int) -> torch.Tensor:
    """The same shape in another layout; `overlapping` and `expanded` have elements on the same bytes."""
    if how == "offset":
        wide = x.new_zeros(x.numel() + 3)
        wide[3:] = x.reshape(-1)
        return wide[3:].view(x.shape)
    if not x.dim() or not x.numel():
        return x
    dim %= x.dim()
    if how == "transposed":
        return x.transpose(dim, -1).contiguous().transpose(dim, -1)
    if how == "reversed dims":
        order = list(reversed(range(x.dim())))
        return x.permute(order).contiguous().permute(order)
    if how == "expanded":
        return x.narrow(dim, 0, 1).expand(x.shape)
    if how == "stepped":
        return torch.stack([x, x], -1)[..., 0]
    strides = [max(s // 2, 1) for s in x.contiguous().stride()]
    return x.contiguous().as_strided(x.shape, strides)


def _storage(x: torch.Tensor, how: str, device: str) -> torch.Tensor:
    """The same tensor on memory that was released, or that ends before it."""
    if x.device.type != device or not x.numel():
        return x
    x = x.clone()
    x.untyped_storage().resize_(0 if how == "released" else x.untyped_storage().nbytes() // 2)
    return x


def _values(x: torch.Tensor, how: str, seed: int) -> torch.Tensor:
    x = x.detach().clone()
    if not x.numel() or x.device.type == "meta":
        return x
    if how == "random":
        chance = torch.Generator().manual_seed(seed)
        raw = torch.randint(
            0, 256, (x.numel() * x.element_size(),), generator=chance, dtype=torch.uint8
        )
        if x.dtype == torch.bool:
            raw %= 2
        return raw.view(x.dtype).view(x.shape).to(x.device)
    if x.dtype.is_floating_point or x.dtype.is_complex:
        most = torch.finfo(x.dtype).max
        number = {
            "nan": float("nan"),
            "inf": float("inf"),
            "-inf": -float("inf"),
            "most": most,
            "least": -most,
        }
    else:
        limits = (
            (0, 1)
            if x.dtype == torch.bool
            else (torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max)
        )
        number = {
            "most": limits[1],
            "least": limits[0],
            "nan": limits[1],
            "inf": limits[1],
            "-inf": limits[0],
        }
    chosen = number.get(how, {"zero": 0, "minus one": -1, "large": 100}.get(how, 0))
    if x.dtype in (torch.uint8, torch.bool):
        chosen = abs(chosen)
    flat = x.view(-1) if x.is_contiguous() else x.contiguous().view(-1)
    if seed % 3:  # one element
        flat[seed % flat.numel()] = chosen
    else:
        flat.fill_(chosen)
    return flat.view(x.shape)


def _alias(x: torch.Tensor, arguments: dict[str, Any], other: str, how: str) -> torch.Tensor:
    found: Any = arguments
    for part in other.split("."):
        found = _step(found, part)
    if not isinstance(found, torch.Tensor):
        return x
    found = found.detach()
    if how == "same" or found.numel() < x.numel() or not found.is_contiguous():
        return found
    flat = found.view(-1)
    start = 0 if how == "view" or flat.numel() == x.numel() else 1
    return flat[start : start + x.numel()].view(x.shape)
