"""npu_scatter against loops."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter(dim, dtype):
    x = make(3, 4, 5, dtype=dtype, low=-9, high=9)
    rest = [s for d, s in enumerate(x.shape) if d != dim % 3]
    index = make(*rest, dtype=torch.int32, low=0, high=x.shape[dim])
    updates = make(*rest, dtype=dtype, low=-9, high=9, seed=7)
    want = x.cpu().clone().movedim(dim, -1)
    for a in range(rest[0]):
        for b in range(rest[1]):
            want[a, b, index[a, b].item()] = updates[a, b].cpu()
    before = x.clone()
    got = torch_npu.npu_scatter(x, index, updates, dim)
    assert torch.equal(got.cpu(), want.movedim(-1, dim % 3))
    assert torch.equal(x.cpu(), before.cpu())


def test_scatter_refusals():
    index = make(3, dtype=torch.int32, low=0, high=4)
    with pytest.raises(RuntimeError, match=r"'dim' must be in \[-2, 1\], but received 2"):
        torch_npu.npu_scatter(make(3, 4), index, make(3), 2)
    with pytest.raises(RuntimeError, match=r"'indices' must be of shape \(4\).*\(3,\)"):
        torch_npu.npu_scatter(make(3, 4), index, make(3), 0)
    with pytest.raises(RuntimeError, match=r"'indices' must be in \[0, 3\]"):
        torch_npu.npu_scatter(make(3, 4), index + 4, make(3), 1)
