"""dropout_with_byte_mask, _dropout_with_byte_mask and its backward."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make, relaxed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 50), (1,), (0, 4), (2, 3, 4, 5)])
def test_result_follows_the_mask(dtype, shape):
    x = make(*shape, dtype=dtype, low=1, high=3)
    y, mask = torch_npu._dropout_with_byte_mask(x, 0.3)
    assert y.dtype == dtype and mask.dtype == torch.uint8 and mask.shape == y.shape == x.shape
    assert set(mask.cpu().unique().tolist()) <= {0, 1}
    want = x.cpu().double() * mask.cpu() / 0.7
    assert_accurate(y, want, (x.cpu() * mask.cpu() / 0.7).to(dtype))


def test_share_of_dropped_elements():
    y = torch_npu.dropout_with_byte_mask(make(200, 500, low=1, high=2), 0.2, True)
    assert (y == 0).double().mean().item() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("p,train", [(0.5, False), (0.0, True)])
def test_identity(p, train):
    x = make(20, 20)
    assert torch.equal(torch_npu.dropout_with_byte_mask(x, p, train), x)


def test_everything():
    assert torch_npu.dropout_with_byte_mask(make(20, 20), 1.0, True).count_nonzero() == 0


@relaxed
@pytest.mark.parametrize("train", [False, True])
def test_gradient(train):
    x = make(5, 30, dtype=torch.float64, low=1, high=2, requires_grad=True)
    y = torch_npu.dropout_with_byte_mask(x, 0.25, train)
    dy = make(5, 30, dtype=torch.float64, seed=4)
    y.backward(dy)
    keep = (y.detach() != 0).cpu().double() / 0.75 if train else 1.0
    assert torch.allclose(x.grad.cpu(), dy.cpu() * keep, rtol=1e-12, atol=0)


@relaxed
def test_gradient_with_the_mask():
    x = make(4, 9, dtype=torch.float64, requires_grad=True)
    y, mask = torch_npu._dropout_with_byte_mask(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), 2.0 * mask.cpu().double())


def test_backward_operator():
    dy = make(3, 4)
    mask = make(3, 4, dtype=torch.uint8, low=0, high=2)
    dx = torch_npu._dropout_with_byte_mask_backward(dy, mask, 0.5)
    assert torch.equal(dx.cpu(), dy.cpu() * 2 * mask.cpu())


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="dropout_with_byte_mask: argument 'self' .*int64"):
        torch_npu.dropout_with_byte_mask(make(4, dtype=torch.int64, high=5), 0.5, True)


def test_bad_probability():
    with pytest.raises(RuntimeError, match="argument 'p' must be from 0 to 1, but received 1.1"):
        torch_npu._dropout_with_byte_mask(make(4), 1.1)


def test_bad_mask():
    with pytest.raises(RuntimeError, match=r"argument 'mask' must be of shape \(3, 4\), .*\(12,\)"):
        torch_npu._dropout_with_byte_mask_backward(
            make(3, 4), make(12, dtype=torch.uint8, low=0, high=2), 0.5
        )
