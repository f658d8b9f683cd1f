"""npu_dropout_do_mask: x * bit / (1 - p), bit by bit."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, gradcheck, make


def reference(x, mask, p):
    out = torch.zeros_like(x).flatten()
    for i, value in enumerate(x.flatten().tolist()):
        if mask[i // 8] >> (i % 8) & 1:
            out[i] = value / (1 - p)
    return out.view(x.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,p", [((9, 15), 0.5), ((128,), 0.1), ((1,), 0.0), ((0,), 0.3)])
def test_forward(dtype, shape, p):
    x = make(*shape, dtype=dtype)
    mask = make(-(-x.numel() // 128) * 16, dtype=torch.uint8, low=0, high=256)
    y, same = torch_npu.npu_dropout_do_mask(x, mask, p)
    assert y.dtype == dtype and torch.equal(same, mask)
    want = reference(x.cpu().double(), mask.cpu().tolist(), p)
    assert_accurate(y, want, want.to(dtype))


def test_with_a_generated_mask():
    x = make(30, 40, low=1, high=2)
    mask = torch_npu.npu_dropout_gen_mask([30, 40], 0.25)
    y, _ = torch_npu.npu_dropout_do_mask(x, mask, 0.25)
    want = reference(x.cpu().double(), mask.cpu().tolist(), 0.25)
    assert_accurate(y, want, want.float())


def test_drops_everything_for_p_1():
    y, _ = torch_npu.npu_dropout_do_mask(make(8), make(16, dtype=torch.uint8, high=9, low=8), 1.0)
    assert y.cpu().tolist() == [0.0] * 8


def test_gradients():
    x = make(5, 6, dtype=torch.float64, requires_grad=True)
    mask = make(16, dtype=torch.uint8, low=0, high=256)
    gradcheck(lambda a: torch_npu.npu_dropout_do_mask(a, mask, 0.3)[0], x)


def test_bad_mask_dtype():
    with pytest.raises(RuntimeError, match="npu_dropout_do_mask: argument 'mask' .*uint8.*int32"):
        torch_npu.npu_dropout_do_mask(make(4), make(16, dtype=torch.int32, high=5), 0.5)


def test_bad_mask_size():
    with pytest.raises(
        RuntimeError, match=r"argument 'mask' must be of at least 16 bytes, .*\(1,\)"
    ):
        torch_npu.npu_dropout_do_mask(make(4), make(1, dtype=torch.uint8, low=0, high=5), 0.5)


def test_bad_probability():
    with pytest.raises(RuntimeError, match="argument 'p' must be from 0 to 1, but received -0.5"):
        torch_npu.npu_dropout_do_mask(make(4), make(16, dtype=torch.uint8, low=0, high=5), -0.5)


def test_a_longer_mask():
    x, mask = make(5, 6), make(48, dtype=torch.uint8, low=0, high=256)
    want = torch_npu.npu_dropout_do_mask(x, mask[:16].clone(), 0.3)[0]
    assert torch.equal(torch_npu.npu_dropout_do_mask(x, mask, 0.3)[0].cpu(), want.cpu())


def test_chips_and_ranks():
    mask = make(16, dtype=torch.uint8, low=0, high=5)
    with on("310P"), pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"):
        torch_npu.npu_dropout_do_mask(make(4, dtype=torch.bfloat16), mask, 0.5)
    with pytest.raises(RuntimeError, match="'self' must be a tensor of 0 to 8 dimensions"):
        torch_npu.npu_dropout_do_mask(make(*[1] * 9), mask, 0.5)
