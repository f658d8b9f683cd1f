"""one_: ones in place."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (1,)])
def test_fills(dtype, shape):
    x = make(*shape, dtype=dtype, low=0, high=9)
    version = x._version
    assert torch_npu.one_(x) is x and x._version > version
    assert x.cpu().tolist() == torch.ones(shape, dtype=dtype).tolist()


def test_fills_a_view_only():
    x = make(4, 6, low=2, high=9)
    before = x.cpu().clone()
    torch_npu.one_(x[:, ::2])
    before[:, ::2] = 1
    assert torch.equal(x.cpu(), before)


def test_takes_one_tensor():
    with pytest.raises(RuntimeError, match="one_"):
        torch_npu.one_(make(2), make(2))
    with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor"):
        torch_npu.one_(3)
    with pytest.raises(RuntimeError, match="missing value for argument 'self'"):
        torch_npu.one_()
