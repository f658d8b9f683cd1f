"""npu_view_copy: a copy into a view."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_view_copy(Tensor(a!) self, Tensor other, bool non_blocking) -> Tensor(a!)",
    ge="ViewCopy",
    aclop=True,
)
def npu_view_copy(self, other):
    r"""Copies a tensor into another one on the device, whatever their strides.

    Args:
        self: is written.
        other: the values, with the shape and dtype of `self`.
        non_blocking: has no meaning within a device.

    Returns:
        `self`.
    """
    return self.copy_(other)


@npu_view_copy.check
def _(self, other, non_blocking):
    must.same_dtype("other", other, "self", self)
    must.shape("other", other, tuple(self.shape))
    must.hold(isinstance(non_blocking, bool), "non_blocking", "a bool", non_blocking)


@npu_view_copy.meta
def _(self):
    return self


npu_view_copy.samples = [
    Sample(lambda make: (make(3, 4), make(3, 4), False)),
    Sample(lambda make: (make(2, 3, 4), make(2, 3, 8)[..., ::2], True)),
]
