"""npu_format_cast_: changes the storage format of a tensor in place."""

from __future__ import annotations

import torch

from torch_npu.npu._format import Format
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _format_rules as rules
from torch_npu.ops.format import _cast


def _cast_in_place(
    self: torch.Tensor, acl_format: int, customize_dtype: int | None, input_dtype: int | None
) -> torch.Tensor:
    made = _cast.cast(self, acl_format, customize_dtype, input_dtype)
    if made is not self:
        with torch.no_grad():
            self.set_(made.untyped_storage(), made.storage_offset(), made.size(), made.stride())
    return self


@npu_op(
    "npu_format_cast_.acl_format(Tensor(a!) self, int acl_format, *, int? customize_dtype=None, "
    "int? input_dtype=None) -> Tensor(a!)",
    direct=True,
    compiled="device",
)
def npu_format_cast__acl_format(self, acl_format, customize_dtype, input_dtype):
    """Changes the storage format of the tensor in place; values and shape stay.

    A cast to or from a private format gives the tensor a new storage: views taken before keep the old one. Graphs
    know no formats, so in them it is the identity. See `npu_format_cast` for the formats.

    Args:
        self: the tensor, of any dtype.
        acl_format: the format, a number or `torch_npu.Format`.
        customize_dtype: the dtype whose 32 bytes are C0 of FRACTAL_NZ.
        input_dtype: the type that `self` carries, where it is not the tensor's own.

    Returns:
        `self`.
    """
    return _cast_in_place(self, acl_format, customize_dtype, input_dtype)


@npu_format_cast__acl_format.check
def _(self, acl_format, customize_dtype, input_dtype):
    _cast.check_cast(self, acl_format, customize_dtype, input_dtype)


@npu_format_cast__acl_format.meta
def _(self):
    return self


@npu_format_cast__acl_format.functionalize
def _(self, acl_format, *, customize_dtype=None, input_dtype=None):
    return self


npu_format_cast__acl_format.samples = [
    Sample(lambda make: (make(5, 17), 29)),
    Sample(lambda make: (make(2, 3, 4, 4), Format.ND)),
]


@npu_op(
    "npu_format_cast_(Tensor(a!) self, Tensor src, *, int? customize_dtype=None, "
    "int? input_dtype=None) -> Tensor(a!)",
    direct=True,
    compiled="device",
)
def npu_format_cast_(self, src, customize_dtype, input_dtype):
    """Changes the storage format of the tensor in place to that of `src`; see `npu_format_cast_.acl_format`.

    Args:
        self: the tensor, of any dtype.
        src: a tensor (its format is taken), or the format itself: a number or `torch_npu.Format`.
        customize_dtype: the dtype whose 32 bytes are C0 of FRACTAL_NZ.
        input_dtype: the type that `self` carries, where it is not the tensor's own.

    Returns:
        `self`.

    Differs from upstream: it does what the page says; upstream's code leaves the format of `self` alone and copies
    the values of `src` into it.
    """
    return _cast_in_place(self, rules.describe(src).format, customize_dtype, input_dtype)


@npu_format_cast_.check
def _(self, src, customize_dtype, input_dtype):
    _cast.on_device("src", src)
    _cast.on_device("self", self)
    number = rules.describe(src).format if must.has_data(src) else Format.ND
    _cast.check_cast(self, number, customize_dtype, input_dtype)


@npu_format_cast_.meta
def _(self):
    return self


@npu_format_cast_.call
def _(self, src, customize_dtype=None, input_dtype=None):
    return torch.ops.npu.npu_format_cast_(
        self, src, customize_dtype=customize_dtype, input_dtype=input_dtype
    )


@npu_format_cast_.functionalize
def _(self, src, *, customize_dtype=None, input_dtype=None):
    return self


npu_format_cast_.samples = [Sample(lambda make: (make(2, 16), make(2, 3, 4, 4)))]
