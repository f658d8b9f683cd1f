"""npu_indexing against numpy's own indexing."""

import itertools

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.support import make

X = make(3, 4, 2, 6)


def spelled(index):
    """Python's index as numbers and masks; numbers that do not count would be wrong."""
    begin, end, strides, masks = [], [], [], dict.fromkeys(MASKS, 0)
    for i, item in enumerate(index):
        first, last, step = 77, -77, 1
        if item is Ellipsis:
            masks["ellipsis_mask"] |= 1 << i
        elif item is None:
            masks["new_axis_mask"] |= 1 << i
        elif isinstance(item, int):
            masks["shrink_axis_mask"] |= 1 << i
            first = item
        else:
            step = 1 if item.step is None else item.step
            first, last = (77 if v is None else v for v in (item.start, item.stop))
            masks["begin_mask"] |= (item.start is None) << i
            masks["end_mask"] |= (item.stop is None) << i
        begin.append(first)
        end.append(last)
        strides.append(step)
    return (begin, end, strides), masks


MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def check(index, x=X, **more):
    index = index if isinstance(index, tuple) else (index,)
    args, masks = spelled(index)
    out = torch_npu.npu_indexing(x, *args, **{m: masks[m] | more.get(m, 0) for m in MASKS})
    want = x.cpu().numpy()[index]
    assert out.shape == want.shape and np.array_equal(out.cpu().numpy(), want)
    assert out.is_contiguous()


@pytest.mark.parametrize(
    "begin,end,step", itertools.product((-9, -2, 0, 3, 9), (-9, -1, 0, 2, 9), (-3, -1, 1, 2))
)
def test_python_slices(begin, end, step):
    x = make(7, 2)
    check(np.s_[begin:end:step], x=x)


@pytest.mark.parametrize(
    "index",
    [
        np.s_[()],
        np.s_[1:3, 0:4:3, 0:2, 2:6],
        np.s_[2:0:-1, ::-2, ::-1, 4:1:-1],
        np.s_[:2, 1:, :, -4:],
        np.s_[-2:],
        np.s_[2, 1:3],
        np.s_[-3, 3, :, 5],
        np.s_[1, 2, 0, -1],
        np.s_[None, 1:2, None, ::-1],
        np.s_[2, None, 3, None, 0:1],
        np.s_[..., 4],
        np.s_[0:2, ..., 1::2],
        np.s_[1, ..., None, 3:0:-2],
        np.s_[..., None],
        np.s_[1:1, 3:2, :, 5:9],
        np.s_[:, 1, ..., 0, 2:5],
    ],
)
def test_python_indices(index):
    check(index)


@pytest.mark.parametrize("open_ends", itertools.product((False, True), repeat=4))
@pytest.mark.parametrize("step", [1, -1, 2])
def test_open_ends(open_ends, step):
    first, last = (None if o else v for o, v in zip(open_ends[:2], (1, 2), strict=True))
    start, stop = (None if o else v for o, v in zip(open_ends[2:], (4, 1), strict=True))
    check(np.s_[first:last:step, :, ::step, start:stop:step])


def test_ellipsis_wins_over_new_axis_and_shrink():
    check(np.s_[..., 1:5], new_axis_mask=1, shrink_axis_mask=1)


def test_new_axis_wins_over_shrink():
    check(np.s_[1:3, None, 2:3], shrink_axis_mask=2)


@pytest.mark.parametrize("mask", MASKS)
def test_bits_beyond_the_items_do_not_count(mask):
    check(np.s_[0:3, 2:3], **{mask: 16})


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.bool, torch.int64])
def test_dtypes_and_non_contiguous(dtype):
    x = make(6, 7, dtype=dtype, low=0, high=9).t()
    check(np.s_[5:0:-2, 1:4], x=x)


def test_out():
    out = torch.zeros(3, device=X.device)
    result = torch.ops.npu.npu_indexing.out(
        X, [1, 2, 0, 1], [0] * 4, [1, 1, 1, 2], 0, 8, 0, 0, 7, out=out
    )
    assert result is out and torch.equal(out.cpu(), X.cpu()[1, 2, 0, 1::2])


@pytest.mark.parametrize(
    "args,masks,message",
    [
        (([0], [1, 2], [1]), {}, r"'end' must be of the length of 'begin' \(1\)"),
        (([0], [1], [1, 1]), {}, r"'strides' must be of the length of 'begin' \(1\)"),
        (([0], [1], [0]), {}, r"'strides' must be without 0, but received \[0\]"),
        (
            ([0] * 5, [1] * 5, [1] * 5),
            {},
            "'begin' must be of at most 4 dimensions, but received 5",
        ),
        (
            ([0, 0], [1, 1], [1, 1]),
            {"ellipsis_mask": 3},
            "'ellipsis_mask' must be 0 or a single bit",
        ),
        (
            ([0, 4], [1, 5], [1, 1]),
            {"shrink_axis_mask": 2},
            "'begin' must be an index of 4 elements at a shrunk axis",
        ),
        (
            ([0], [1], [-1]),
            {"shrink_axis_mask": 1},
            "'strides' must be positive at a shrunk axis, but received -1",
        ),
        (
            ([0] * 9, [1] * 9, [1] * 9),
            {"new_axis_mask": 31},
            "'new_axis_mask' must be such that.*at most 8",
        ),
    ],
)
def test_bad_arguments(args, masks, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_indexing(X, *args, **masks)
