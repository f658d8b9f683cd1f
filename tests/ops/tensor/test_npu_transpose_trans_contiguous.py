"""npu_transpose_trans_contiguous.out against permute on the host."""

import pytest
import torch

from tests.ops.support import make

run = torch.ops.npu.npu_transpose_trans_contiguous.out


@pytest.mark.parametrize("perm", [[2, 0, 1], [0, 1, 2], [-1, 1, 0]])
def test_permutations(perm):
    x = make(2, 3, 4)
    want = x.cpu().permute(perm)
    out = torch.empty_like(want).to(x.device)
    assert run(x, perm, False, out=out).data_ptr() == out.data_ptr()
    assert torch.equal(out.cpu(), want)


def test_refusals():
    with pytest.raises(RuntimeError, match=r"'perm' must be a permutation of the 2 dim.*\[0, 0\]"):
        run(make(2, 3), [0, 0], out=make(2, 2))
    with pytest.raises(RuntimeError, match=r"'out' must be of shape \(3, 2\).*\(2, 3\)"):
        run(make(2, 3), [1, 0], out=make(2, 3))
