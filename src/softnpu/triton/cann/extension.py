"""triton.language.extra.cann.extension: slices and elements of a block, in the core's buffer on the card."""

from __future__ import annotations

from typing import Any

from softnpu.triton.cann._values import integer, integers, tensor

__all__ = ["extract_slice", "get_element", "insert_slice"]


def extract_slice(ful: Any, offsets: Any, sizes: Any, strides: Any, **_: Any) -> Any:
    """The block of `sizes` that begins at `offsets` of `ful` and takes every `strides`-th element."""
    at = _place("extract_slice", ful, offsets, sizes, strides)
    return tensor(ful.handle.data[at].copy(), ful.dtype)


def insert_slice(ful: Any, sub: Any, offsets: Any, sizes: Any, strides: Any, **_: Any) -> Any:
    """A copy of `ful` in which that block is `sub`."""
    at = _place("insert_slice", ful, offsets, sizes, strides)
    if tuple(map(integer, sub.shape)) != integers(sizes):
        raise ValueError(
            f"insert_slice: sub must have the shape sizes = {integers(sizes)}, received {list(sub.shape)}"
        )
    if sub.dtype != ful.dtype:
        raise ValueError(
            f"insert_slice: sub must have the dtype {ful.dtype} of ful, received {sub.dtype}"
        )
    data = ful.handle.data.copy()
    data[at] = sub.handle.data
    return tensor(data, ful.dtype)


def get_element(src: Any, indice: Any, **_: Any) -> Any:
    """The scalar at the index `indice`, one number for each dimension."""
    at = integers(indice)
    data = src.handle.data
    _fits("get_element", "indice", at, data.ndim)
    for index, size in zip(at, data.shape):
        if not 0 <= index < size:
            raise IndexError(
                f"get_element: indice must be inside {list(data.shape)}, received {at}"
            )
    return tensor(data[at].reshape(1), src.dtype, like=_scalar(src))


class _scalar:
    """Tells `tensor` that the result is no block."""

    def __init__(self, src: Any):
        self.type = src.dtype


def _place(name: str, ful: Any, offsets: Any, sizes: Any, strides: Any) -> tuple[slice, ...]:
    shape = ful.handle.data.shape
    starts, counts, steps = integers(offsets), integers(sizes), integers(strides)
    for label, given in (("offsets", starts), ("sizes", counts), ("strides", steps)):
        _fits(name, label, given, len(shape))
    places = []
    for start, count, step, size in zip(starts, counts, steps, shape):
        step = step or 1  # a dimension of one element may give 0
        if start < 0 or count < 1 or start + (count - 1) * step >= size:
            raise IndexError(
                f"{name}: offsets {starts}, sizes {counts} and strides {steps} must stay inside "
                f"the shape {list(shape)}"
            )
        places.append(slice(start, start + (count - 1) * step + 1, step))
    return tuple(places)


def _fits(name: str, label: str, given: tuple[int, ...], ndim: int) -> None:
    if len(given) != ndim:
        raise ValueError(f"{name}: {label} must have {ndim} numbers, received {given}")
