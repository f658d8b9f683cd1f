"""Segments of an axis written at an offset of their own for each row: what caches of keys and values need.

`updates[i]` goes to `target[i]`, or with (row, offset) pairs to `target[row]`, from the offset on along `axis`.
"""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared._indices import first_bad


def check(self, indices, updates, axis, last_axis=True):
    """Ranks, shapes and bounds; `last_axis` tells whether the last dimension may be `axis`."""
    must.ndim("indices", indices, 1, 2)
    if indices.dim() == 2:
        must.shape("indices", indices, (None, 2))
    must.ndim("updates", updates, self.dim())
    places = range(1, self.dim() if last_axis else self.dim() - 1)
    allowed = -self.dim() <= axis < self.dim() and axis % self.dim() in places
    where = (
        "any dimension but the first" if last_axis else "neither the first nor the last dimension"
    )
    must.hold(allowed, "axis", f"{where} of 'self' (of {self.dim()} dimensions)", axis)
    axis %= self.dim()
    rows, length = updates.shape[0], updates.shape[axis]
    expected = tuple(None if i in (0, axis) else size for i, size in enumerate(self.shape))
    must.shape("updates", updates, (indices.shape[0], *expected[1:]))
    for i, size in ((0, rows), (axis, length)):
        text = f"at most {self.shape[i]} long in dimension {i}, as 'self' is"
        must.hold(size <= self.shape[i], "updates", text, size, ErrCode.PARAM)
    if not must.has_data(indices):
        return
    host = indices.cpu().long()
    offsets = host if host.dim() == 1 else host[:, 1]
    end = self.shape[axis] - length
    bad = torch.zeros_like(host, dtype=torch.bool)
    if host.dim() == 2:
        bad[:, 0] = (host[:, 0] < 0) | (host[:, 0] >= self.shape[0])
        first_bad("indices", f"in [0, {self.shape[0]}) in column 0", host, bad)
        bad[:, 1] = (offsets < 0) | (offsets > end)
    else:
        bad = (offsets < 0) | (offsets > end)
    text = (
        f"in [0, {end}], so that {length} elements fit into dimension {axis} of {self.shape[axis]}"
    )
    first_bad("indices", text, host, bad)


def check_disjoint(indices, length):
    """Segments given as (row, offset) pairs do not overlap."""
    if not must.has_data(indices) or indices.dim() == 1:
        return
    pairs = sorted(tuple(pair) for pair in indices.cpu().tolist())
    for (row, start), (other, offset) in zip(pairs, pairs[1:], strict=False):
        apart = row != other or offset - start >= length
        text = f"segments of {length} elements that do not overlap"
        must.hold(apart, "indices", text, f"({row}, {start}) and ({other}, {offset})")


def write(target, indices, updates, axis):
    """Writes the segments into `target`, in place."""
    offsets = indices.long()
    if indices.dim() == 1:
        rows = torch.arange(updates.shape[0], device=updates.device)
    else:
        rows, offsets = offsets.unbind(1)
    length = updates.shape[axis]
    places = offsets.unsqueeze(1) + torch.arange(length, device=updates.device)
    view = target.movedim(axis, 1)
    view.index_put_((rows.unsqueeze(1), places), updates.movedim(axis, 1))
    return target
