"""npu_dropout_gen_mask: a mask without a tensor argument."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("size,length", [([32, 16], 64), ([17, 19], 48), ([1], 16), ([0], 0)])
def test_size_and_device(size, length):
    mask = torch_npu.npu_dropout_gen_mask(size, 0.4)
    assert mask.dtype == torch.uint8 and mask.shape == (length,)
    assert mask.device == make(1).device


def test_options():
    device = make(1).device
    mask = torch_npu.npu_dropout_gen_mask([2, 64], p=0.5, dtype=torch.float32, device=device)
    assert mask.dtype == torch.uint8 and mask.device == device and mask.shape == (16,)


@pytest.mark.parametrize("p,byte", [(0.0, 255), (1.0, 0)])
def test_nothing_and_everything(p, byte):
    assert torch_npu.npu_dropout_gen_mask([256], p).cpu().tolist() == [byte] * 32


def test_share_of_set_bits():
    data = torch_npu.npu_dropout_gen_mask([1000, 256], 0.1).cpu()
    share = sum(((data >> i) & 1).double().mean().item() for i in range(8)) / 8
    assert share == pytest.approx(0.9, abs=0.01)


def test_two_calls_differ():
    masks = [torch_npu.npu_dropout_gen_mask([1024], 0.5).cpu() for _ in range(2)]
    assert not torch.equal(*masks)


def test_bad_probability():
    with pytest.raises(RuntimeError, match="npu_dropout_gen_mask: argument 'p' .* received -1.0"):
        torch_npu.npu_dropout_gen_mask([4], -1.0)


def test_the_dtype_is_not_read():
    mask = torch_npu.npu_dropout_gen_mask([4], 0.5, dtype=torch.int8)
    assert mask.dtype == torch.uint8 and mask.shape == (16,)


def test_pinned_memory():
    with pytest.raises(
        RuntimeError, match="argument 'pin_memory' must be False, but received True"
    ):
        torch_npu.npu_dropout_gen_mask([4], 0.5, pin_memory=True)
