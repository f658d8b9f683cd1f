"""npu_indexing against numpy's own indexing."""

import itertools

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.support import make

X = make(2, 3, 4, 5)


def check(index, *args, x=X, **masks):
    out = torch_npu.npu_indexing(x, *args, **masks)
    want = x.cpu().numpy()[index]
    assert out.shape == want.shape and np.array_equal(out.cpu().numpy(), want)
    assert out.is_contiguous()


def test_plain():
    check(np.s_[0:2, 1:3, 2:4, 3:5], [0, 1, 2, 3], [2, 3, 4, 5], [1, 1, 1, 1])
    check(np.s_[0:-1, 1:-1, -3:-1, -2:5], [0, 1, -3, -2], [-1, -1, -1, 5], [1, 1, 1, 1])
    check(np.s_[0:2, 1:3], [0, 1], [2, 3], [1, 1])
    check(np.s_[...], [], [], [])


@pytest.mark.parametrize(
    "begin,end,step", itertools.product((-9, -2, 0, 3, 9), (-9, -1, 0, 2, 9), (-3, -1, 1, 2))
)
def test_python_slices(begin, end, step):
    x = make(7, 2)
    check(np.s_[begin:end:step], [begin], [end], [step], x=x)


@pytest.mark.parametrize("begin_mask,end_mask", itertools.product((0, 1, 5, 15), repeat=2))
@pytest.mark.parametrize("step", [1, -1])
def test_open_ends(begin_mask, end_mask, step):
    begin, end = [1, 1, 1, 3], [1, 2, 3, 0]
    index = tuple(
        slice(
            None if begin_mask >> i & 1 else begin[i], None if end_mask >> i & 1 else end[i], step
        )
        for i in range(4)
    )
    check(index, begin, end, [step] * 4, begin_mask=begin_mask, end_mask=end_mask)


def test_shrunk_axes():
    check(np.s_[0, 1:3, 0:2, 1:5:2], [0, 1, 0, 1], [1, 3, 2, 5], [1, 1, 1, 2], shrink_axis_mask=1)
    check(np.s_[-1, 1, 0:3:2], [-1, 1, 0], [0, 2, 3], [3, 2, 2], shrink_axis_mask=3)
    check(np.s_[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 4], [1] * 4, shrink_axis_mask=15)


def test_new_axes():
    check(np.s_[None, 0:2, 1:3], [0, 0, 1], [0, 2, 3], [1] * 3, new_axis_mask=1)
    check(
        np.s_[1:2, None, 1:3, None, 2:4],
        [1, 0, 1, 0, 2],
        [2, 0, 3, 0, 4],
        [1] * 5,
        new_axis_mask=10,
    )
    check(np.s_[0, None, None, 1, 0:4], [0, 0, 0, 1, 0], [1, 0, 0, 2, 4], [1] * 5,
          new_axis_mask=6, shrink_axis_mask=9)  # fmt: skip


def test_ellipsis():
    check(np.s_[0:1, ..., 2:3], [0, 0, 2], [1, 4, 3], [1] * 3, ellipsis_mask=2)
    check(
        np.s_[..., 1:, :2], [0, 1, 0], [2, 3, 2], [1] * 3, ellipsis_mask=1, begin_mask=4, end_mask=2
    )
    check(
        np.s_[0:2, ..., 2:3, 1:3, 0:5:2],
        [0, 0, 2, 1, 0],
        [2, 3, 3, 3, 5],
        [1, 1, 1, 1, 2],
        ellipsis_mask=2,
    )
    check(
        np.s_[..., None, 1:3],
        [0, 0, 1],
        [0, 0, 3],
        [1] * 3,
        ellipsis_mask=1,
        new_axis_mask=3,
        shrink_axis_mask=1,
    )


def test_bits_beyond_the_items_do_not_count():
    for mask in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"):
        check(np.s_[0:2, 1:3], [0, 1], [2, 3], [1, 1], **{mask: 8})


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.bool, torch.int64])
def test_dtypes_and_non_contiguous(dtype):
    x = make(6, 7, dtype=dtype, low=0, high=9).t()
    check(np.s_[5:0:-2, 1:4], [5, 1], [0, 4], [-2, 1], x=x)


def test_out():
    out = torch.zeros(2, 2, device=X.device)
    result = torch.ops.npu.npu_indexing.out(
        X, [0, 0, 0], [1, 1, 2], [1, 1, 1], 0, 0, 0, 0, 3, out=out
    )
    assert result is out and torch.equal(out.cpu(), X.cpu()[0, 0, 0:2].resize_(out.shape))


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
            ([0, 3], [1, 4], [1, 1]),
            {"shrink_axis_mask": 2},
            "'begin' must be an index of 3 elements at a shrunk axis",
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
