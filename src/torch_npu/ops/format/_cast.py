"""Casting between formats: what the forms of npu_format_cast share."""

from __future__ import annotations

import torch

from softnpu import chips, settings
from torch_npu import _dtypes
from torch_npu._errors import BadArgument, ErrCode
from torch_npu.npu._format import Format
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _format_rules as rules

_FOUR_BITS = ("int4", "float4_e2m1fn_x2", "float4_e1m2fn_x2")
#: what Ascend950 brings into FRACTAL_NZ; packed and 8-bit types come as bytes
_WEIGHTS = (
    torch.int8, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int32,
    torch.float8_e4m3fn,
)  # fmt: skip


def check_cast(
    self: torch.Tensor, acl_format: int, customize_dtype: int | None, input_dtype: int | None
) -> None:
    """What the arguments alone tell; the storage's part is checked by `cast`."""
    rules.known("acl_format", acl_format)
    for name, code in (("customize_dtype", customize_dtype), ("input_dtype", input_dtype)):
        if code is not None:
            must.hold(_dtypes.name(code) is not None, name, "the number of a dtype", code)
    now = rules.describe(self) if must.has_data(self) else None
    source = rules.guess(self.shape) if now is None else now.format
    if source == acl_format or (rules.is_base(source) and rules.is_base(acl_format)):
        return
    if customize_dtype is not None and not _by_aclop(self, now):
        must.hold(
            customizable(),
            "customize_dtype",
            "None on this product: it needs Atlas A2 or A3 with CANN 9.1.0 or later, or Ascend950",
            _dtypes.text(customize_dtype),
            ErrCode.NOT_SUPPORT,
        )
    if chips.current().family == "A5":
        must.hold(
            rules.is_base(acl_format) or acl_format in rules.NZ,
            "acl_format",
            "a base format or FRACTAL_NZ on Ascend950",
            rules.name(acl_format),
            ErrCode.NOT_SUPPORT,
        )
        if rules.is_base(source) and acl_format in rules.NZ:
            _check_nz_on_950(self, customize_dtype, input_dtype)


def _by_aclop(self: torch.Tensor, now: rules.Description | None) -> bool:
    """Whether the older operator casts, which ignores `customize_dtype`: views, and gaps in a private format."""
    if now is None or chips.current().family == "A5":
        return False
    return tuple(self.shape) != now.sizes or not (rules.is_base(now.format) or self.is_contiguous())


def _check_nz_on_950(
    self: torch.Tensor, customize_dtype: int | None, input_dtype: int | None
) -> None:
    """The weights that Ascend950 brings into FRACTAL_NZ."""
    must.dtype("self", self, *_WEIGHTS)
    shape = tuple(self.shape)
    must.hold(0 not in shape, "self", "not empty for FRACTAL_NZ on Ascend950", shape, ErrCode.PARAM)
    wanted = input_dtype if customize_dtype is None else customize_dtype
    own = wanted is None and self.dtype.itemsize < 4
    own = own or (wanted is not None and _dtypes.storage(wanted) == self.dtype)
    most = 6 if own else 3
    fits = 2 <= self.dim() <= most
    expected = f"of 2 to {most} dimensions for FRACTAL_NZ on Ascend950"
    must.hold(fits, "self", expected, shape, ErrCode.PARAM)
    if own and self.dtype in (torch.float16, torch.bfloat16):
        must.hold(
            shape[-2] != 1,
            "self",
            "of more than one row for FRACTAL_NZ on Ascend950",
            shape,
            ErrCode.NOT_SUPPORT,
        )


def customizable() -> bool:
    family = chips.current().family
    version = [int(n) for n in settings.current().cann_version.split(".")[:2] if n.isdecimal()]
    return family == "A5" or (family in ("A2", "A3") and version >= [9, 1])


def nz_form(
    dtype: torch.dtype, customize_dtype: int | None, input_dtype: int | None
) -> tuple[int, int | None]:
    """(format, C0) that a cast to FRACTAL_NZ gives; None stands for the dtype's own C0.

    `customize_dtype` chooses C0 as its own 32 bytes. On Ascend950 a C0 that is not the dtype's own shows in the
    format: 50 for 16 bytes, 52 and 53 for 2 and 4 words of packed 4-bit weights.
    """
    width = None
    if customize_dtype is not None:
        carrier = _dtypes.storage(customize_dtype)
        assert carrier is not None
        width = 32 // carrier.itemsize
    packed = input_dtype is not None and _dtypes.name(input_dtype) in _FOUR_BITS
    if packed and width != 8:
        return Format.FRACTAL_NZ_C0_16, 16
    if width is None or chips.current().family != "A5":
        return Format.FRACTAL_NZ, width
    if dtype.itemsize >= 4 and width > 8:
        return (Format.FRACTAL_NZ_C0_2, 2) if width == 16 else (Format.FRACTAL_NZ_C0_4, 4)
    if dtype.itemsize == 1 and width == 16:
        return Format.FRACTAL_NZ_C0_16, 16
    return Format.FRACTAL_NZ, width


def flat(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The first elements of the tensor's storage."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), 0, (elements,), (1,))


def cast(
    self: torch.Tensor,
    acl_format: int,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """A tensor of the same geometry on a new storage in the format; `self` where nothing has to move."""
    rules.known("acl_format", acl_format)
    now = rules.describe(self)
    if now.format == acl_format:
        return self
    if rules.is_base(now.format) and rules.is_base(acl_format):
        rules.tag(self, rules.Description(acl_format, acl_format, now.sizes, now.padded))
        return self
    if rules.BASE[now.format] != rules.BASE[acl_format] and not (
        rules.is_base(now.format) or rules.is_base(acl_format)
    ):
        raise BadArgument(
            "acl_format",
            f"of the base format of {rules.name(now.format)}, or a base format",
            rules.name(acl_format),
            ErrCode.NOT_SUPPORT,
        )
    if (
        chips.current().family == "A5"
        and not rules.is_base(now.format)
        and not self.is_contiguous()
    ):
        raise BadArgument(
            "self",
            f"contiguous in {rules.name(now.format)} on Ascend950",
            f"strides {self.stride()}",
            ErrCode.NOT_SUPPORT,
        )
    width = None
    if acl_format == Format.FRACTAL_NZ:
        acl_format, width = nz_form(self.dtype, customize_dtype, input_dtype)
    number = rules.permitted(acl_format)
    elements = self.untyped_storage().nbytes() // self.dtype.itemsize
    made = rules.create(
        now.sizes, self.dtype, self.device, number, width=width, at_least=elements, argument="self"
    )
    flat(made, elements).copy_(flat(self, elements))
    return made.set_(made.untyped_storage(), self.storage_offset(), self.size(), self.stride())


def on_device(name: str, tensor: torch.Tensor) -> None:
    """The tensor is an NPU tensor (the other one brought the call here)."""
    must.hold(tensor.device.type == "npu", name, "an NPU tensor", f"one on {tensor.device}")
