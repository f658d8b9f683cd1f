"""copy_memory_: copies the memory of one tensor to another, whatever their formats and strides."""

from __future__ import annotations

import torch

from torch_npu._errors import BadArgument, ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _format_rules as rules


def _extent(name: str, tensor: torch.Tensor) -> int:
    """How many elements of memory the tensor stands for: all of its storage in a padded format."""
    description = rules.describe(tensor)
    if description.elements > max(1, torch.Size(description.sizes).numel()):
        must.hold(
            tensor.storage_offset() == 0,
            name,
            "at the start of its storage",
            tensor.storage_offset(),
        )
        return description.elements
    return min(tensor.numel(), description.elements)


def _memory(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), (elements,), (1,))


@npu_op(
    "copy_memory_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)", direct=True
)
def copy_memory_(self, src, non_blocking):
    """Copies as many elements of memory as `self` has, from where `src` begins; strides are not looked at.

    For contiguous tensors of one shape it is `copy_`.

    Args:
        self: the target, an NPU tensor.
        src: the source, on the same device and of the same dtype.
        non_blocking: whether the host may go on before the copy is done; it is done at once here.

    Returns:
        `self`.

    Constraints:
        The memory of `src` must hold as many elements as `self`; the card would read what lies behind it. Tensors in
        a padded format begin where their storage does.
    """
    wanted = _extent("self", self)
    _extent("src", src)
    held = src.untyped_storage().nbytes() // src.dtype.itemsize - src.storage_offset()
    padded = wanted > self.numel()
    if held < wanted and not padded:
        raise BadArgument("src", f"of at least {wanted} elements of memory", held, ErrCode.PARAM)
    count = min(wanted, held)
    _memory(self, count).copy_(_memory(src, count), non_blocking)
    return self


@copy_memory_.check
def _(self, src, non_blocking):
    must.hold(src.device.type == "npu", "src", "an NPU tensor", f"one on {src.device}")
    must.hold(
        self.device == src.device, "self", f"on the device of 'src' ({src.device})", self.device
    )
    must.same_dtype("src", src, "self", self)
    must.hold(isinstance(non_blocking, bool), "non_blocking", "a bool", non_blocking)


@copy_memory_.meta
def _(self):
    return self


@copy_memory_.functionalize
def _(self, src, non_blocking=False):
    self.view(-1).copy_(src.reshape(-1)[: self.numel()], non_blocking)
    return self


copy_memory_.samples = [
    Sample(lambda make: (make(3, 4), make(3, 4, seed=1))),
    Sample(
        lambda make: (
            make(6, dtype=torch.int32, high=9),
            make(2, 3, dtype=torch.int32, high=9),
        ),
        {"non_blocking": True},
    ),
]
