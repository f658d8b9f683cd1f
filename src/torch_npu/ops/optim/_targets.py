"""The optimizer operators work on `out=(var, m, v)`, which they read and write.

Upstream declares a form without `out` beside it, which cannot know the variable; it raises.
"""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch._C import parse_schema

from softnpu import chips
from torch_npu import _errors
from torch_npu.ops import _check as must
from torch_npu.ops._operator import library
from torch_npu.ops._signatures import signature

TARGETS = ("var", "m", "v")


def without_targets(schema: str) -> None:
    """Declares the form without `out`."""
    name = schema.split("(")[0]
    library.define(schema)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        bad = _errors.BadArgument("out", "given, as (var, m, v)", None, _errors.ErrCode.PARAM)
        raise _errors.operator_error(name, bad)

    library.impl(name, refuse, "CompositeExplicitAutograd")


def with_targets(schema: str) -> Callable[..., Any]:
    """The public function of the form without `out`, which takes `out=(var, m, v)` after all."""
    name = schema.split("(")[0]

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        packet = getattr(torch.ops.npu, name)
        if out is None and not any(target in kwargs for target in TARGETS):
            return packet.default(*args, **kwargs)
        if out is not None:
            kwargs.update(zip(TARGETS, out, strict=True))
        return packet.out(*args, **kwargs)

    declared = signature(parse_schema(schema))
    keyword = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    call.__signature__ = declared.replace(  # type: ignore[attr-defined]
        parameters=[*declared.parameters.values(), keyword]
    )
    call.out = call.default = call  # type: ignore[attr-defined]
    return call


def check(grad: torch.Tensor, targets: dict[str, torch.Tensor], *dtypes: torch.dtype) -> None:
    """var, m, v and the gradient are alike."""
    var = targets["var"]
    must.dtype("var", var, *dtypes)
    for label, tensor in (*targets.items(), ("grad", grad)):
        must.same_dtype(label, tensor, "var", var)
        must.shape(label, tensor, tuple(var.shape))


def floats() -> tuple[torch.dtype, ...]:
    """The dtypes of var: bfloat16 from the A2 series on."""
    older = chips.current().family in ("910A", "310P")
    return (torch.float16, torch.float32) + (() if older else (torch.bfloat16,))


def rounded(dtype: torch.dtype, *scalars: Any) -> list[float]:
    """The scalars as the operator reads them: upstream passes each as a tensor of this dtype."""
    return [_nearest(float(scalar), dtype) for scalar in scalars]


def _nearest(value: float, dtype: torch.dtype) -> float:
    """By bits, without a tensor: the kernels are shape functions too."""
    if dtype == torch.float64 or not math.isfinite(value):
        return value
    try:
        if dtype == torch.float16:
            return struct.unpack("<e", struct.pack("<e", value))[0]
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype == torch.bfloat16:
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def store(
    targets: tuple[torch.Tensor, ...], values: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Writes the new values, rounded to each target's dtype."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
    return targets
