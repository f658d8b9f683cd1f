"""Tensors that share one storage: upstream's `torch_npu.utils.combine_tensors`.

The fused optimizers put parameters, gradients and states of one dtype side by side, so that one
operation updates them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.utils._error_code import ErrCode, pta_error

__all__ = ["get_part_combined_tensor", "is_combined_tensor_valid", "npu_combine_tensors"]


def npu_combine_tensors(
    list_of_tensor: Sequence[torch.Tensor], require_copy_value: bool = True
) -> torch.Tensor | None:
    """Moves the tensors into one new flat tensor, in order, and returns it.

    Each tensor stays the same object and becomes a window of the result; with
    `require_copy_value=False` its values are dropped (it reads as zeros). None where there is nothing
    to combine.
    """
    if len(list_of_tensor) == 0:
        return None
    _require_combinable(list_of_tensor)
    total = sum(t.numel() for t in list_of_tensor)
    if total == 0:
        return None
    first = list_of_tensor[0]
    combined = torch.zeros(total, dtype=first.dtype, device=first.device)
    offset = 0
    with torch.no_grad():
        for tensor in list_of_tensor:
            window = combined[offset : offset + tensor.numel()].view(tensor.shape)
            if require_copy_value:
                window.copy_(tensor)
            tensor.data = window
            offset += tensor.numel()
    return combined


def get_part_combined_tensor(
    combined_tensor: torch.Tensor | None, index: int, size: int
) -> torch.Tensor | None:
    """The `size` elements of a combined tensor from `index` on, sharing its memory."""
    if combined_tensor is None or size == 0:
        return None
    if index < 0 or size < 0 or index + size > combined_tensor.numel():
        raise RuntimeError(
            f"argument 'index' and 'size' must lie within the combined tensor of "
            f"{combined_tensor.numel()} elements, but received {index} and {size}"
            + pta_error(ErrCode.VALUE)
        )
    return combined_tensor[index : index + size].detach()


def is_combined_tensor_valid(
    combined_tensor: torch.Tensor | None, list_of_tensor: Sequence[torch.Tensor | None]
) -> bool:
    """Whether every tensor of the list still lies contiguously in the combined tensor's memory."""
    if len(list_of_tensor) == 0:
        return True
    if combined_tensor is None:
        return False
    start = combined_tensor.data_ptr()
    end = start + combined_tensor.numel() * combined_tensor.element_size()
    return all(
        t is not None and start <= t.data_ptr() < end and t.is_contiguous() for t in list_of_tensor
    )


def _require_combinable(tensors: Sequence[torch.Tensor | None]) -> None:
    first = tensors[0]
    for tensor in tensors:
        if tensor is None or first is None:
            raise RuntimeError("tensors to combine must not be None" + pta_error(ErrCode.PARAM))
        if tensor.dtype != first.dtype:
            raise RuntimeError(
                f"tensors to combine must be of one dtype, but received {first.dtype} and "
                f"{tensor.dtype}" + pta_error(ErrCode.TYPE)
            )
        if tensor.device.type != "npu":
            raise RuntimeError(
                f"tensors to combine must be on an npu, but received one on {tensor.device.type}"
                + pta_error(ErrCode.VALUE)
            )
        if not tensor.is_contiguous():
            raise RuntimeError(
                f"tensors to combine must be contiguous, but received strides {tensor.stride()}"
                + pta_error(ErrCode.VALUE)
            )
