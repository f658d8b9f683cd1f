"""empty_with_swapped_memory: a tensor of the device whose bytes lie in host memory."""

from __future__ import annotations

import torch

from softnpu import _C, chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.format.empty_with_format import check_options, resolved


def _unset(dtype: torch.dtype) -> float | int | bool:
    """What PyTorch puts into memory that nobody wrote, in deterministic mode."""
    if dtype == torch.bool:
        return True
    return torch.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max


@npu_op(
    "empty_with_swapped_memory(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
    key="CompositeExplicitAutograd",
    direct=True,
)
def empty_with_swapped_memory(size, dtype, device):
    """An uninitialized tensor that says `npu` and whose bytes lie in host memory, outside of the device's.

    Its bytes appear in none of the device's memory statistics and count against no limit.

    Args:
        size: the shape.
        dtype: the dtype; PyTorch's default dtype if None.
        device: an NPU; the current one if None.

    Returns:
        The tensor, contiguous. In deterministic mode it is filled as `torch.empty` is: NaN, or the largest integer.

    Constraints:
        Atlas A2 and A3.

    Differs from upstream: every operator takes such a tensor; on the card only fill_, zero_, mul_, npu_apply_adam_w,
    npu_hans_encode and npu_hans_decode do.
    """
    made = _C.swapped_empty(list(size), dtype or torch.get_default_dtype(), resolved(device))
    filling = torch._C._get_deterministic_fill_uninitialized_memory()
    if filling and torch.are_deterministic_algorithms_enabled():
        return made.fill_(_unset(made.dtype))
    return made


@empty_with_swapped_memory.check
def _(size, device):
    check_options(size, None, device, None)
    family = chips.current().family
    must.hold(
        family in ("A2", "A3"),
        "device",
        "an Atlas A2 or A3 product",
        chips.current().name,
        ErrCode.NOT_SUPPORT,
    )


@empty_with_swapped_memory.meta
def _(size, dtype, device):
    return torch.empty(tuple(size), dtype=dtype, device="npu" if device is None else device)


empty_with_swapped_memory.samples = [Sample(lambda make: ((0, 2),), {"dtype": torch.float32})]
