"""npu_format_cast and the private forms below it: a tensor in another storage format."""

from __future__ import annotations

import torch

from torch_npu.npu._format import Format
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op, public
from torch_npu.ops._shared import _format_rules as rules
from torch_npu.ops.format import _cast

public(Format)


def _like(self: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device)


@npu_op(
    "npu_format_cast(Tensor self, int acl_format, *, int? customize_dtype=None, "
    "int? input_dtype=None) -> Tensor",
    direct=True,
    compiled="device",
)
def npu_format_cast(self, acl_format, customize_dtype, input_dtype):
    """The tensor in another storage format: the same values and shape, another size of the storage.

    Between base formats (NCHW 0, NHWC 1, ND 2, NCDHW 30) only the tag changes, on the tensor that is given, and it
    is returned; so is a tensor that has the format already. To or from a private format (NC1HWC0 3, FRACTAL_Z 4,
    NDHWC 27, FRACTAL_NZ 29, NDC1HWC0 32, FRACTAL_Z_3D 33) the result is a new tensor on a storage of its own. A shape
    that cannot have the format gets the nearest one: ND for FRACTAL_NZ of fewer than two dimensions, NCHW for ND of
    four. Where `torch.npu.config.allow_internal_format` is False (the default on Atlas A2 and A3), the base format
    of a private one is given instead. Operators give base formats, whatever their inputs have.

    Args:
        self: the tensor, of any dtype.
        acl_format: the format, a number or `torch_npu.Format`; a tensor stands for its own format.
        customize_dtype: the dtype (or its number) whose 32 bytes are C0 of FRACTAL_NZ; 3, int32, makes C0 8. None
            means 32 for one byte and 16 for more.
        input_dtype: the type that `self` carries, where it is not the tensor's own: two 4-bit numbers in a byte.

    Returns:
        The tensor in the format.

    Constraints:
        `customize_dtype` needs Atlas A2 or A3 with CANN 9.1.0 (SOFTNPU_CANN_VERSION) or Ascend950. The 3D formats
        need five dimensions, NC1HWC0 and FRACTAL_Z at most four. From one private format to another with a different
        base there is no way. On Ascend950 FRACTAL_NZ is the only private format.

    Differs from upstream: bytes keep their natural order, and `allow_internal_format` holds for every CANN version
    (from 9.1.0 on, upstream casts between ND and FRACTAL_NZ in spite of it).
    """
    return _cast.cast(self, acl_format, customize_dtype, input_dtype)


@npu_format_cast.check
def _(self, acl_format, customize_dtype, input_dtype):
    _cast.check_cast(self, acl_format, customize_dtype, input_dtype)


@npu_format_cast.meta
def _(self):
    return _like(self)


@npu_format_cast.backward
def _(grad):
    return {"self": grad}


@npu_format_cast.call
def _(self, acl_format, customize_dtype=None, input_dtype=None):
    return torch.ops.npu.npu_format_cast(
        self, acl_format, customize_dtype=customize_dtype, input_dtype=input_dtype
    )


npu_format_cast.samples = [
    Sample(lambda make: (make(5, 17), 29)),
    Sample(lambda make: (make(2, 3, 4, 4, dtype=torch.float16), 3)),
    Sample(lambda make: (make(2, 3, 2, 4, 4), Format.NDC1HWC0)),
]


@npu_op(
    "npu_format_cast.Tensor(Tensor self, Tensor dst, *, int? customize_dtype=None, "
    "int? input_dtype=None) -> Tensor",
    listed=False,
    direct=True,
    compiled="device",
)
def npu_format_cast_Tensor(self, dst, customize_dtype, input_dtype):
    """The tensor in the storage format of another one; see `npu_format_cast`."""
    return _cast.cast(self, rules.describe(dst).format, customize_dtype, input_dtype)


@npu_format_cast_Tensor.check
def _(self, dst, customize_dtype, input_dtype):
    _cast.on_device("dst", dst)
    _cast.on_device("self", self)
    number = rules.describe(dst).format if must.has_data(dst) else Format.ND
    _cast.check_cast(self, number, customize_dtype, input_dtype)


@npu_format_cast_Tensor.meta
def _(self):
    return _like(self)


@npu_format_cast_Tensor.backward
def _(grad):
    return {"self": grad}


@npu_op(
    "_npu_format_cast(Tensor self, int acl_format) -> Tensor",
    export=False,
    direct=True,
    compiled="device",
)
def _npu_format_cast(self, acl_format):
    """What `npu_format_cast` calls where it has something to do; for graphs."""
    return _cast.cast(self, acl_format)


@_npu_format_cast.check
def _(self, acl_format):
    _cast.check_cast(self, acl_format, None, None)


@_npu_format_cast.meta
def _(self):
    return _like(self)


@_npu_format_cast.backward
def _(grad):
    return {"self": grad}


_npu_format_cast.samples = [Sample(lambda make: (make(5, 17), 29))]


@npu_op(
    "_npu_format_cast.aclnn(Tensor self, int acl_format, int customize_dtype) -> Tensor",
    listed=False,
    direct=True,
    compiled="device",
)
def _npu_format_cast_aclnn(self, acl_format, customize_dtype):
    """`_npu_format_cast` with a C0."""
    return _cast.cast(self, acl_format, customize_dtype)


@_npu_format_cast_aclnn.check
def _(self, acl_format, customize_dtype):
    if must.has_data(self):
        _cast.check_cast(self, acl_format, customize_dtype, None)


@_npu_format_cast_aclnn.meta
def _(self):
    return _like(self)


@_npu_format_cast_aclnn.backward
def _(grad):
    return {"self": grad}


@npu_op(
    "_npu_format_cast.input_dtype(Tensor self, int acl_format, int customize_dtype, "
    "int input_dtype) -> Tensor",
    listed=False,
    direct=True,
    compiled="device",
)
def _npu_format_cast_input_dtype(self, acl_format, customize_dtype, input_dtype):
    """`_npu_format_cast` with a C0 and the type that the tensor carries."""
    return _cast.cast(self, acl_format, customize_dtype, input_dtype)


@_npu_format_cast_input_dtype.check
def _(self, acl_format, customize_dtype, input_dtype):
    if must.has_data(self):
        _cast.check_cast(self, acl_format, customize_dtype, input_dtype)


@_npu_format_cast_input_dtype.meta
def _(self):
    return _like(self)


@_npu_format_cast_input_dtype.backward
def _(grad):
    return {"self": grad}
