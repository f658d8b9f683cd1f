"""npu_one_hot: one value at the class, another elsewhere."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op

_AUTO = -1


def _dtype(on_value, off_value):
    """float32; on Ascend 950 the type of the values."""
    if chips.current().family != "A5" or float in (type(on_value), type(off_value)):
        return torch.float32
    return torch.bool if isinstance(on_value, bool) else torch.int64


@npu_op(
    "npu_one_hot(Tensor self, int num_classes=-1, int depth=1, Scalar on_value=1, "
    "Scalar off_value=0) -> Tensor"
)
def npu_one_hot(self, num_classes, depth, on_value, off_value):
    r"""A new dimension of `depth` elements, with `on_value` at the class and `off_value` elsewhere.

    $$ out_{\ldots, c, \ldots} = on\_value \ \text{if}\ self_{\ldots} = c,
       \ \text{else}\ off\_value $$

    Args:
        self: the classes, any shape; a class outside [0, depth) has no `on_value`.
        num_classes: despite its name the place of the new dimension; -1 is the last.
        depth: its size; on Ascend 950 also -1, the largest class plus one.
        on_value: at the class.
        off_value: elsewhere; on Ascend 950 of the same Python type as `on_value`.

    Returns:
        float32; on Ascend 950 int64 for integer values.

    Differs from upstream: before Ascend 950 upstream gives the result the shape (..., depth) wherever the new
    dimension lies, so that its elements are misnamed.

    Constraints:
        `depth=-1` reads the classes, so that it has no shape under FakeTensor.
    """
    if depth == _AUTO:
        depth = max(int(self.max()) + 1, 1)
    axis = self.dim() if num_classes == -1 else num_classes
    classes = torch.arange(depth, device=self.device)
    hit = self.long().unsqueeze(axis) == classes.reshape(-1, *[1] * (self.dim() - axis))
    dtype = _dtype(on_value, off_value)
    on = torch.full((), on_value, dtype=dtype, device=self.device)
    off = torch.full((), off_value, dtype=dtype, device=self.device)
    return torch.where(hit, on, off)


@npu_one_hot.check
def _(self, num_classes, depth, on_value, off_value):
    last = self.dim()
    must.hold(-1 <= num_classes <= last, "num_classes", f"within [-1, {last}]", num_classes)
    if chips.current().family == "A5":
        must.hold(depth >= _AUTO, "depth", "at least -1", depth)
        must.hold(
            type(on_value) is type(off_value),
            "off_value",
            f"of the type of 'on_value' ({type(on_value).__name__})",
            type(off_value).__name__,
            ErrCode.TYPE,
        )
        must.hold(self.numel() > 0 or depth > 0, "depth", "positive for an empty tensor", depth)
        for name, value in (("on_value", on_value), ("off_value", off_value)):
            fits = not isinstance(value, float) or abs(value) <= torch.finfo(torch.float32).max
            must.hold(fits, name, "a number of float32", value, ErrCode.TYPE)
        if depth == _AUTO:
            must.hold(must.has_data(self), "depth", "given for a tensor without data", depth)
    else:
        must.hold(depth >= 0, "depth", "at least 0", depth)


npu_one_hot.samples = [
    Sample(lambda make: (make(4, dtype=torch.int32, low=0, high=6),), {"depth": 5}),
    Sample(
        lambda make: (make(2, 3, dtype=torch.int64, low=0, high=4), 1, 4),
        {"on_value": 0.5, "off_value": -0.5},
        name="in the middle",
    ),
]
