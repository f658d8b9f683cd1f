"""npu_dtype_cast, its in-place form and its backward: another type, also one torch lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import AVERAGE, SUM, Sharding, elementwise
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._packing import pack_int4, unpack_int4
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops.tensor._dims import dense

#: formats that put two values into a byte
_PAIRED = ("int4", "float4_e2m1fn_x2", "float4_e1m2fn_x2")
#: formats whose tensors are bytes
_CODED = (*_PAIRED, "hifloat8")


def _decoded(x: torch.Tensor, name: str) -> torch.Tensor:
    """The values of a tensor of bytes."""
    return unpack_int4(x).float() if name == "int4" else _formats.decode(x.view(torch.uint8), name)


def _encoded(x: torch.Tensor, name: str) -> torch.Tensor:
    """Values as bytes of a format that torch does not have."""
    if name == "int4":
        whole = saturate(x, torch.quint4x2) if x.is_floating_point() else x.clamp(-8, 7)
        return pack_int4(whole.to(torch.int8), torch.uint8)
    return _formats.encode(x.float(), name).view(torch.uint8)


def _cast(x: torch.Tensor, dtype: int, input_dtype: int | None) -> torch.Tensor:
    source = None if input_dtype is None else _dtypes.name(input_dtype)
    if source in _CODED:
        x = _decoded(x, source)
    target = _dtypes.name(dtype)
    if target in _CODED:
        return dense(_encoded(x, target))
    return x.to(_dtypes.storage(dtype), copy=True, memory_format=torch.contiguous_format)


def _linear(x: Any, name: str) -> Iterator[Sharding]:
    """Sums and averages that the ranks have in part may be cast in part too."""
    yield from elementwise(x.ndim, name)
    for partial in (SUM, AVERAGE):
        yield Sharding((partial,), {name: partial})


@npu_op("npu_dtype_cast(Tensor self, int dtype, int? input_dtype=None) -> Tensor")
def npu_dtype_cast(self, dtype, input_dtype):
    r"""The tensor's values in another data type; floats become integers by truncation.

    $$ y = \mathrm{cast}(x) $$

    Args:
        self: any tensor.
        dtype: a torch dtype, or upstream's number of a type: also hifloat8, float4_e2m1fn_x2,
            float4_e1m2fn_x2 and int4, whose results are bytes (the last three two values to a
            byte, so that the last size, which must be even, halves).
        input_dtype: what the bytes of `self` are where its dtype does not say it.

    Returns:
        A contiguous tensor of `dtype`.

    Constraints:
        hifloat8, float4 and int4 exist on Ascend 950 only.
    """
    return _cast(self, dtype, input_dtype)


@npu_dtype_cast.check
def _(self, dtype, input_dtype):
    newest = chips.current().family == "A5"
    for name, code in (("dtype", dtype), ("input_dtype", input_dtype)):
        if code is None:
            continue
        known = _dtypes.name(code)
        text = _dtypes.text(code)
        must.hold(_dtypes.storage(code) is not None, name, "a data type", text, ErrCode.TYPE)
        if known in _CODED:
            must.hold(newest, name, "a type of this chip", text, ErrCode.TYPE)
    source = None if input_dtype is None else _dtypes.name(input_dtype)
    if source in _CODED:
        must.dtype("self", self, torch.uint8)
    elif source is not None and (stored := _dtypes.storage(source)) is not None:
        must.dtype("self", self, stored)
    if _dtypes.name(dtype) in _PAIRED and source not in _PAIRED:
        even = self.dim() > 0 and self.size(-1) % 2 == 0
        must.hold(even, "self", "of an even last size", tuple(self.shape), ErrCode.PARAM)


@npu_dtype_cast.backward
def _(grad, *, self, dtype, input_dtype):
    return {"self": torch.ops.npu.npu_dtype_cast_backward(grad, self.dtype, dtype, input_dtype)}


@npu_dtype_cast.sharding
def _(self):
    yield from _linear(self, "self")


npu_dtype_cast.samples = [
    Sample(lambda make: (make(3, 4), torch.float16)),
    Sample(lambda make: (make(3, 4, low=-9, high=9), torch.int32)),
    Sample(lambda make: (make(5, dtype=torch.bool), torch.bfloat16)),
]


@npu_op(
    "npu_dtype_cast_backward(Tensor grad, ScalarType dtype, int? grad_dtype=None, "
    "int? input_dtype=None) -> Tensor"
)
def npu_dtype_cast_backward(grad, dtype, grad_dtype, input_dtype):
    """Gradient of `npu_dtype_cast`: `grad`, of type `grad_dtype`, back in the input's type."""
    return _cast(grad, dtype if input_dtype is None else input_dtype, grad_dtype)


@npu_dtype_cast_backward.check
def _(dtype, grad_dtype, input_dtype):
    for name, code in (("grad_dtype", grad_dtype), ("input_dtype", input_dtype)):
        known = code is None or _dtypes.storage(code) is not None
        must.hold(known, name, "a data type", code, ErrCode.TYPE)
    must.hold(_dtypes.storage(dtype) is not None, "dtype", "a data type", dtype, ErrCode.TYPE)


@npu_dtype_cast_backward.sharding
def _(grad):
    yield from _linear(grad, "grad")


npu_dtype_cast_backward.samples = [
    Sample(lambda make: (make(3, 4, dtype=torch.float16), torch.float32))
]


@npu_op("_npu_dtype_cast(Tensor self, ScalarType dtype) -> Tensor")
def _npu_dtype_cast(self, dtype):
    """`npu_dtype_cast` for torch's own types."""
    return self.to(dtype, copy=True, memory_format=torch.contiguous_format)


@_npu_dtype_cast.backward
def _(grad, *, self):
    return {"self": torch.ops.npu._npu_dtype_cast_backward(grad, self.dtype)}


@_npu_dtype_cast.sharding
def _(self):
    yield from _linear(self, "self")


_npu_dtype_cast.samples = [Sample(lambda make: (make(3, 4), torch.float16))]


@npu_op("_npu_dtype_cast_backward(Tensor grad, ScalarType dtype) -> Tensor")
def _npu_dtype_cast_backward(grad, dtype):
    """Gradient of `_npu_dtype_cast`: `grad` in the input's type."""
    return grad.to(dtype, copy=True, memory_format=torch.contiguous_format)


@_npu_dtype_cast_backward.sharding
def _(grad):
    yield from _linear(grad, "grad")


_npu_dtype_cast_backward.samples = [
    Sample(lambda make: (make(3, 4, dtype=torch.float16), torch.float32))
]


@npu_op("npu_dtype_cast_(Tensor(a!) self, Tensor src) -> Tensor(a!)", aclop=True)
def npu_dtype_cast_(self, src):
    """Writes the values of `src` into `self`; as upstream, nothing if the types are the same."""
    return self if self.dtype == src.dtype else self.copy_(src)


@npu_dtype_cast_.check
def _(self, src):
    must.shape("src", src, tuple(self.shape))


npu_dtype_cast_.samples = [Sample(lambda make: (make(3, 4), make(3, 4, dtype=torch.float16)))]
