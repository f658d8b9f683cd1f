"""npu_indexing_trans_contiguous.out against Python's slices."""

import pytest
import torch

from tests.ops.support import make

run = torch.ops.npu.npu_indexing_trans_contiguous.out


def test_slices():
    x, out = make(4, 6), make(2, 3)
    got = run(x, [1, 0], [3, 6], [1, 2], out=out)
    assert got.data_ptr() == out.data_ptr()
    assert torch.equal(out.cpu(), x.cpu()[1:3, ::2])
    out = make(6)
    run(x, [2, 1], [3, 2], [1, 1], end_mask=2, begin_mask=2, shrink_axis_mask=1, out=out)
    assert torch.equal(out.cpu(), x.cpu()[2])


def test_into_a_view():
    x, base = make(4, 6), make(3, 4)
    run(x, [1, 0], [3, 6], [1, 2], out=base.t()[:2])
    assert torch.equal(base.t()[:2].cpu(), x.cpu()[1:3, ::2])


def test_refusals():
    with pytest.raises(RuntimeError, match=r"'out' must be of shape \(2, 3\).*\(3, 2\)"):
        run(make(4, 6), [1, 0], [3, 6], [1, 2], out=make(3, 2))
    with pytest.raises(RuntimeError, match="'out' must be of the dtype of 'self'"):
        run(make(4, 6), [1, 0], [3, 6], [1, 2], out=make(2, 3).half())
