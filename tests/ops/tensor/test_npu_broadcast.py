"""npu_broadcast against torch.broadcast_to on the host."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.int64, torch.bool, torch.uint8]
)
@pytest.mark.parametrize(
    "shape,size",
    [
        ((3, 1), (3, 4)),
        ((3,), (2, 3)),
        ((1, 5, 1), (4, 5, 2)),
        ((), (2, 2)),
        ((1, 3), (0, 3)),
        ((2, 3), (2, 3)),
    ],
)
def test_values(dtype, shape, size):
    x = make(*shape, dtype=dtype, low=0, high=9)
    out = torch_npu.npu_broadcast(x, size)
    assert torch.equal(out.cpu(), torch.broadcast_to(x.cpu(), size))
    assert (
        out.is_contiguous()
        and out.dtype == dtype
        and (out.numel() == 0 or out.data_ptr() != x.data_ptr())
    )


def test_non_contiguous_and_out():
    x = make(4, 3).t()
    out = torch.empty(0, device=x.device)
    result = torch_npu.npu_broadcast(x, [2, 3, 4], out=out)
    assert result is out and torch.equal(out.cpu(), x.cpu().expand(2, 3, 4))


@pytest.mark.parametrize("size", [[3], [2, 4], [4, 2], [-1, 3], [3, 2, 1]])
def test_bad_size(size):
    with pytest.raises(
        RuntimeError, match=r"npu_broadcast: argument 'size' must be sizes that \[2, 3\] expands to"
    ):
        torch_npu.npu_broadcast(make(2, 3), size)


def test_out_of_another_dtype():
    out = torch.empty(2, 3, dtype=torch.int32, device=make(1).device)
    with pytest.raises(RuntimeError, match="argument 'out' must be of dtype torch.float32.*int32"):
        torch_npu.npu_broadcast(make(3), [2, 3], out=out)
