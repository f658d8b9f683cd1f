"""_npu_dropout and npu_dropout_backward: the mask's layout, and the result that it implies."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make, relaxed


def kept(mask, count):
    """The bits of a mask one by one, the lowest of each byte first."""
    data = mask.cpu().tolist()
    return torch.tensor([(data[i // 8] >> (i % 8)) & 1 for i in range(count)], dtype=torch.double)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape,size",
    [((4,), 16), ((128,), 16), ((129,), 32), ((7, 33), 32), ((2, 3, 50), 48), ((), 16)],
)
def test_result_follows_the_mask(dtype, shape, size):
    x = make(*shape, dtype=dtype, low=1, high=3)
    y, mask = torch_npu._npu_dropout(x, 0.3)
    assert y.dtype == dtype and y.shape == x.shape
    assert mask.dtype == torch.uint8 and mask.shape == (size,)
    keep = kept(mask, x.numel()).view(x.shape)
    want = x.cpu().double() * keep / 0.7
    assert_accurate(y, want, (x.cpu() * keep / 0.7).to(dtype))


def test_share_of_dropped_elements():
    y, mask = torch_npu._npu_dropout(make(200, 500, low=1, high=2), 0.2)
    assert (y == 0).double().mean().item() == pytest.approx(0.2, abs=0.01)
    assert kept(mask, 100000).mean().item() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("p,byte", [(0.0, 255), (1.0, 0)])
def test_nothing_and_everything(p, byte):
    x = make(16, 16)
    y, mask = torch_npu._npu_dropout(x, p)
    assert torch.equal(y, x) if p == 0 else y.count_nonzero() == 0
    assert mask.cpu().tolist() == [byte] * 32


def test_a_dropped_infinity_is_zero():
    x = torch.full((64, 64), torch.inf).to(make(1).device)
    y, _ = torch_npu._npu_dropout(x, 0.5)
    assert set(y.cpu().unique().tolist()) == {0.0, torch.inf}


def test_empty():
    y, mask = torch_npu._npu_dropout(make(0, 5), 0.5)
    assert y.shape == (0, 5) and mask.shape == (0,)


def test_non_contiguous():
    x = make(16, 8, low=1, high=2).t()
    y, mask = torch_npu._npu_dropout(x, 0.5)
    keep = kept(mask, 128).view(8, 16)
    assert torch.equal(y.cpu(), x.cpu() * keep.float() * 2)


def test_two_calls_differ():
    x = make(1024)
    masks = [torch_npu._npu_dropout(x, 0.5)[1].cpu() for _ in range(2)]
    assert not torch.equal(*masks)


@relaxed
def test_gradient():
    x = make(5, 30, dtype=torch.float64, requires_grad=True)
    y, mask = torch_npu._npu_dropout(x, 0.25)
    dy = make(5, 30, dtype=torch.float64, seed=4)
    y.backward(dy)
    want = dy.cpu() * kept(mask, 150).view(5, 30) / 0.75
    assert torch.allclose(x.grad.cpu(), want, rtol=1e-12, atol=0)


def test_backward_operator_reads_the_lowest_bit_first():
    mask = torch.zeros(16, dtype=torch.uint8)
    mask[0], mask[1] = 0b01100010, 0b00000001
    dy = torch.ones(10).to(make(1).device)
    dx = torch_npu.npu_dropout_backward(dy, mask.to(dy.device), 0.5)
    assert dx.cpu().tolist() == [0, 2, 0, 0, 0, 2, 2, 0, 2, 0]


def test_bad_probability():
    with pytest.raises(
        RuntimeError, match="_npu_dropout: argument 'p' must be from 0 to 1, .* 1.5"
    ):
        torch_npu._npu_dropout(make(4), 1.5)


def test_bad_dtype():
    with pytest.raises(
        RuntimeError, match="_npu_dropout: argument 'self' must be of dtype .*int32"
    ):
        torch_npu._npu_dropout(make(4, dtype=torch.int32, high=5), 0.5)


def test_mask_of_other_dtype():
    with pytest.raises(RuntimeError, match="npu_dropout_backward: argument 'mask' .*uint8.*int8"):
        torch_npu.npu_dropout_backward(make(4), make(16, dtype=torch.int8, high=5), 0.5)


def test_mask_of_other_size():
    with pytest.raises(
        RuntimeError, match=r"argument 'mask' must be of at least 32 bytes, .*\(16,\)"
    ):
        torch_npu.npu_dropout_backward(make(129), make(16, dtype=torch.uint8, low=0, high=5), 0.5)
