"""npu_indexing: a strided slice, with the masks of TensorFlow's StridedSlice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.tensor._dims import dense

_MAX_DIMENSIONS = 8


def _items(
    begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask
) -> Iterator[Any]:
    """The masks as Python's own indices; ellipsis before new axis, new axis before shrink."""
    for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        if ellipsis_mask >> i & 1:
            yield Ellipsis
        elif new_axis_mask >> i & 1:
            yield None
        elif shrink_axis_mask >> i & 1:
            yield first
        else:
            yield slice(
                None if begin_mask >> i & 1 else first, None if end_mask >> i & 1 else last, step
            )


def _full(items: list[Any], dims: int) -> list[Any]:
    """The ellipsis (one at the end, if none) spelled out, so that each dimension has its item."""
    items = items if Ellipsis in items else [*items, Ellipsis]
    place = items.index(Ellipsis)
    missing = dims - sum(i is not None and i is not Ellipsis for i in items)
    return [*items[:place], *[slice(None)] * missing, *items[place + 1 :]]


@npu_op(
    "npu_indexing(Tensor self, int[] begin, int[] end, int[] strides, int begin_mask=0, "
    "int end_mask=0, int ellipsis_mask=0, int new_axis_mask=0, int shrink_axis_mask=0) -> Tensor",
    out="npu_indexing.out(Tensor self, int[] begin, int[] end, int[] strides, int begin_mask=0, "
    "int end_mask=0, int ellipsis_mask=0, int new_axis_mask=0, int shrink_axis_mask=0, *, "
    "Tensor(a!) out) -> Tensor(a!)",
)
def npu_indexing(
    self, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask
):
    r"""`self[begin:end:strides]` in every dimension; numbers may be negative, as in Python.

    $$ out_{i_1, i_2, \ldots} = self_{begin_1 + i_1 strides_1,\ begin_2 + i_2 strides_2, \ldots} $$

    Args:
        self: any tensor.
        begin: the first index of each dimension.
        end: the first index that is out.
        strides: the steps, none 0.
        begin_mask: bit i set: `begin[i]` does not count, the slice starts at the edge.
        end_mask: bit i set: `end[i]` does not count, the slice runs to the edge.
        ellipsis_mask: bit i set: item i stands for all dimensions that no other item takes; one bit
            at most. Without it, missing dimensions at the end are taken whole.
        new_axis_mask: bit i set: item i adds a dimension of size 1.
        shrink_axis_mask: bit i set: item i takes the index `begin[i]` and removes the dimension.

    Returns:
        A contiguous tensor of at most 8 dimensions.

    Differs from upstream:
        The masks work on every chip; upstream's output size respects them on Ascend 950 only.
    """
    items = _items(
        begin,
        end,
        strides,
        begin_mask,
        end_mask,
        ellipsis_mask,
        new_axis_mask,
        shrink_axis_mask,
    )
    out, dim = self, 0
    for item in _full(list(items), self.dim()):
        if item is None:
            out = out.unsqueeze(dim)
        elif isinstance(item, int):
            out = out.select(dim, item)
            continue
        else:
            wanted = range(out.size(dim))[item]
            forwards = wanted if wanted.step > 0 else wanted[::-1]
            if not wanted:
                out = out.narrow(dim, 0, 0)
            else:
                part = slice(forwards.start, forwards.stop, forwards.step)
                out = out[(slice(None),) * dim + (part,)]
                out = out if wanted.step > 0 else out.flip(dim)  # torch steps forwards only
        dim += 1
    return dense(out)


@npu_indexing.check
def _(
    self, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask
):
    must.hold(len(end) == len(begin), "end", f"of the length of 'begin' ({len(begin)})", list(end))
    same = len(strides) == len(begin)
    must.hold(same, "strides", f"of the length of 'begin' ({len(begin)})", list(strides))
    must.hold(0 not in strides, "strides", "without 0", list(strides))
    single = ellipsis_mask & (ellipsis_mask - 1) == 0
    must.hold(single, "ellipsis_mask", "0 or a single bit", bin(ellipsis_mask))
    items = list(
        _items(
            begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask,
            shrink_axis_mask,
        )
    )  # fmt: skip
    taken = sum(i is not None and i is not Ellipsis for i in items)
    must.hold(taken <= self.dim(), "begin", f"of at most {self.dim()} dimensions", taken)
    for item, step in zip(items, strides, strict=True):
        fits = not isinstance(item, int) or step > 0
        must.hold(fits, "strides", "positive at a shrunk axis", step)
    full = _full(items, self.dim())
    for item, size in zip((i for i in full if i is not None), self.shape, strict=True):
        fits = not isinstance(item, int) or -size <= item < size
        must.hold(fits, "begin", f"an index of {size} elements at a shrunk axis", item)
    left = sum(not isinstance(i, int) for i in full)
    expected = f"such that the result has at most {_MAX_DIMENSIONS} dimensions"
    must.hold(left <= _MAX_DIMENSIONS, "new_axis_mask", expected, left)


npu_indexing.samples = [
    Sample(lambda make: (make(4, 5), [0, 0], [2, 4], [1, 2])),
    Sample(lambda make: (make(4, 5), [3, 1], [0, 5], [-1, 1]), name="backwards"),
    Sample(
        lambda make: (make(2, 3, 4), [1, 0, 1], [0, 0, 3], [1, 1, 1]),
        {"shrink_axis_mask": 1, "new_axis_mask": 2, "ellipsis_mask": 0, "end_mask": 4},
        name="masks",
    ),
]
