"""empty_with_format and unsafe_empty_with_format: uninitialized tensors in a storage format."""

from __future__ import annotations

from typing import Any

import torch

from softnpu import _C
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _format_rules as rules


def check_options(size: Any, layout: Any, device: Any, pin_memory: Any) -> None:
    for extent in size:
        must.hold(extent >= 0, "size", "of non-negative numbers", list(size))
    must.hold(
        layout in (None, torch.strided), "layout", "torch.strided", layout, ErrCode.NOT_SUPPORT
    )
    kind = "npu" if device is None else torch.device(device).type
    must.hold(kind == "npu", "device", "an NPU device", device)
    must.hold(
        not pin_memory, "pin_memory", "False: only dense CPU tensors can be pinned", pin_memory
    )


def resolved(device: Any) -> torch.device:
    """The device with its index; the current one where none is given."""
    given = torch.device("npu" if device is None else device)
    index = _C.current_device() if given.index is None else given.index
    return torch.device("npu", index)


def _fake(size: Any, dtype: Any, device: Any) -> torch.Tensor:
    return torch.empty(tuple(size), dtype=dtype, device="npu" if device is None else device)


@npu_op(
    "empty_with_format(int[] size, *, ScalarType? dtype=None, Layout? layout=None, "
    "Device? device=None, bool? pin_memory=None, int acl_format=2, "
    "int? base_addr_aligned_kb=None) -> Tensor",
    key="CompositeExplicitAutograd",
    direct=True,
    compiled="empty",
)
def empty_with_format(size, dtype, device, acl_format, base_addr_aligned_kb):
    """An uninitialized tensor in a storage format, private ones too whatever `allow_internal_format` says.

    Args:
        size: the shape.
        dtype: the dtype; PyTorch's default dtype if None.
        layout: torch.strided.
        device: an NPU; the current one if None.
        pin_memory: False; device memory cannot be pinned.
        acl_format: the format, a number or `torch_npu.Format`. A shape that cannot have it gets the nearest one.
        base_addr_aligned_kb: the address of the storage is a multiple of so many KiB.

    Returns:
        The tensor, contiguous.
    """
    return rules.create(
        size,
        dtype or torch.get_default_dtype(),
        resolved(device),
        acl_format,
        alignment=(base_addr_aligned_kb or 0) * 1024,
    )


@empty_with_format.check
def _(size, layout, device, pin_memory, acl_format, base_addr_aligned_kb):
    check_options(size, layout, device, pin_memory)
    rules.known("acl_format", acl_format)
    if base_addr_aligned_kb is not None:
        must.hold(
            base_addr_aligned_kb > 0, "base_addr_aligned_kb", "positive", base_addr_aligned_kb
        )


@empty_with_format.meta
def _(size, dtype, device):
    return _fake(size, dtype, device)


empty_with_format.samples = [
    Sample(lambda make: ((0, 3),), {"dtype": torch.float32, "device": torch.device("npu")}),
    Sample(lambda make: ((0, 16),), {"device": torch.device("npu"), "acl_format": 29}),
]


@npu_op(
    "unsafe_empty_with_format(int[] size, *, ScalarType? dtype=None, Layout? layout=None, "
    "Device? device=None, bool? pin_memory=None, int acl_format=2, bool keep_format=False) -> Tensor",
    export=False,
    key="CompositeExplicitAutograd",
    direct=True,
    compiled="empty",
)
def unsafe_empty_with_format(size, dtype, device, acl_format, keep_format):
    """`empty_with_format` that gives the base format where private ones are switched off, unless `keep_format`.

    Args:
        size: the shape.
        dtype: the dtype; PyTorch's default dtype if None.
        layout: torch.strided.
        device: an NPU; the current one if None.
        pin_memory: False.
        acl_format: the format.
        keep_format: whether a private format is given in any case.

    Returns:
        The tensor, contiguous.
    """
    number = acl_format if keep_format else rules.permitted(acl_format)
    return rules.create(size, dtype or torch.get_default_dtype(), resolved(device), number)


@unsafe_empty_with_format.check
def _(size, layout, device, pin_memory, acl_format):
    check_options(size, layout, device, pin_memory)
    rules.known("acl_format", acl_format)


@unsafe_empty_with_format.meta
def _(size, dtype, device):
    return _fake(size, dtype, device)


unsafe_empty_with_format.samples = [
    Sample(
        lambda make: ((0, 16),),
        {"device": torch.device("npu"), "acl_format": 29, "keep_format": True},
    )
]
