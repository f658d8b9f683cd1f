"""torch.mm, bmm, addmm and baddbmm with `out_dtype`, which PyTorch has for CUDA alone.

The products of halves are summed in fp32, as always here, and rounded to `out_dtype` once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softnpu import torch_versions
from torch_npu._errors import BadArgument, ErrCode, operator_error
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide

_library = torch.library.Library("aten", "IMPL")  # noqa: TOR901


def _check(tensors: dict[str, Any], dims: int, out_dtype: Any) -> None:
    """A direct call may leave tensors out, or give any number for a type."""
    for argument, tensor in tensors.items():
        if tensor is None:
            raise BadArgument(argument, "a tensor", None, ErrCode.TYPE)
        must.dtype(argument, tensor, torch.float16, torch.bfloat16, torch.float32)
    for argument in list(tensors)[-2:]:
        must.ndim(argument, tensors[argument], dims)
    floating = isinstance(out_dtype, torch.dtype) and out_dtype.is_floating_point
    must.hold(floating, "out_dtype", "a floating type", out_dtype, ErrCode.TYPE)


def _forms(name: str, product: Callable[..., torch.Tensor]) -> None:
    """Registers the form that returns its result and the one that writes it."""

    def functional(*given: Any, out: torch.Tensor | None = None, **factors: Any) -> torch.Tensor:
        *tensors, out_dtype = given
        try:
            _check(dict(zip(names, tensors, strict=True)), dims, out_dtype)
            must.dtype("out", out, out_dtype)
        except BadArgument as bad:
            raise operator_error(name, bad) from None
        return product(*(wide(t) for t in tensors), **factors).to(out_dtype)

    def written(*given: Any, out: torch.Tensor | None, **factors: Any) -> torch.Tensor:
        if out is None:
            raise operator_error(name, BadArgument("out", "a tensor", None, ErrCode.TYPE))
        result = functional(*given, out=out, **factors)
        return out.resize_(result.shape).copy_(result)

    schema = getattr(torch.ops.aten, name).dtype._schema
    names = [a.name for a in schema.arguments if str(a.type) == "Tensor"]
    dims = 3 if name.endswith("bmm") else 2  # of a factor

    _library.impl(f"{name}.dtype", functional, "PrivateUse1")
    _library.impl(f"{name}.dtype_out", written, "PrivateUse1")


if torch_versions.has_out_dtype():
    for _product in (torch.mm, torch.bmm, torch.addmm, torch.baddbmm):
        _forms(_product.__name__, _product)
