"""npu_view_copy between views."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("non_blocking", [False, True])
def test_views(non_blocking):
    base, other = make(4, 6), make(8, 4, seed=4)
    view = base.t()[::2]
    want = other.cpu()[:3]
    got = torch_npu.npu_view_copy(view, other[:3], non_blocking)
    assert got.data_ptr() == view.data_ptr()
    assert torch.equal(base.cpu().t()[::2], want)
    assert torch.equal(base.cpu().t()[1::2], make(4, 6).cpu().t()[1::2])


def test_refusals():
    with pytest.raises(RuntimeError, match=r"'other' must be of shape \(3, 4\).*\(4, 3\)"):
        torch_npu.npu_view_copy(make(3, 4), make(4, 3), False)
    with pytest.raises(RuntimeError, match="'other' must be of the dtype of 'self'"):
        torch_npu.npu_view_copy(make(3, 4), make(3, 4).half(), False)
