"""npu_reshape: the same elements in other sizes."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize(
    "shape,to",
    [((2, 8), (4, 4)), ((2, 3, 4), (24,)), ((), (1, 1)), ((0, 3), (3, 0)), ((6,), (1, 6))],
)
@pytest.mark.parametrize("refresh", [False, True])
def test_values(shape, to, refresh):
    x = make(*shape)
    out = torch_npu.npu_reshape(x, to, refresh)
    assert out.shape == to and out.flatten().tolist() == x.flatten().tolist()
    if x.numel():
        out.zero_()
        assert x.any()


def test_non_contiguous_and_out():
    x = make(3, 4).t()
    out = torch.empty(0, device=x.device)
    assert torch_npu.npu_reshape(x, [2, 6], out=out) is out
    assert out.tolist() == x.cpu().contiguous().view(2, 6).tolist()


@pytest.mark.parametrize("shape", [[5], [-1, 2], [2, 3, 2]])
def test_bad_shape(shape):
    with pytest.raises(
        RuntimeError, match="npu_reshape: argument 'shape' must be sizes whose product is 6"
    ):
        torch_npu.npu_reshape(make(2, 3), shape)


def test_refresh_needs_a_contiguous_tensor():
    with pytest.raises(
        RuntimeError,
        match="argument 'can_refresh' must be False for a tensor that is not contiguous",
    ):
        torch_npu.npu_reshape(make(2, 3).t(), [6], True)


def test_out_of_another_dtype():
    out = torch.empty(6, dtype=torch.float16, device=make(1).device)
    with pytest.raises(
        RuntimeError, match="argument 'out' must be of dtype torch.float32.*float16"
    ):
        torch_npu.npu_reshape(make(2, 3), [6], out=out)
